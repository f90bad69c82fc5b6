"""Runs the gateway with an engine until a signal stops it (`hone gateway`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import secrets
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hone.policy.chat import Chat
from hone.policy.engine import Engine, Sampling
from hone.policy.errors import PolicyError
from hone.policy.gateway import Admin, Gateway, Session, SessionLimits, open_gateway
from hone.policy.hub import find_model
from hone.policy.model import load_tokenizer, make_renderer
from hone.policy.rendering import ChatRenderer
from hone.policy.scripted import ScriptedEngine, ScriptedReply, read_script
from hone.policy.settings import ModelSettings, ServerEngineSettings, TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.sandbox.remote.server import read_token, refuse_open_door

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SCRIPTED = "scripted:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The flags of `hone gateway`."""

    engine: str  # the URL of a server, or scripted:FILE
    kind: Literal["vllm", "sglang"]  # of the server
    model: Path | None  # folder with the tokenizer; optional for a script
    renderer: str
    context_tokens: int
    max_tokens: int  # of a reply
    temperature: float
    calls: int  # limits of a session by default; 0: none
    tokens: int
    seconds: float
    host: str
    port: int | None
    socket: Path | None
    token_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A running gateway and its first session."""

    gateway: Gateway
    session: Session
    token: str  # administers sessions; "": every client may


async def serve_gateway(options: GatewayOptions, on_ready: Callable[[RunningGateway], None]) -> None:
    """Serve until SIGTERM or SIGINT; call `on_ready` with the address.

    Raises PolicyError, EngineError and ProviderUnavailable for unusable options, and OSError.
    """
    token = _token(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with _open_engine(options) as (engine, renderer), contextlib.AsyncExitStack() as stack:
        sessions = _Sessions(options, engine, renderer)
        admin = Admin(token=token, open=sessions.open, close=sessions.close)
        name = options.model.name if options.model else "scripted"
        sessions.gateway = gateway = await stack.enter_async_context(
            open_gateway(socket=options.socket, host=options.host, port=options.port, model=name, admin=admin)
        )
        gc.freeze()  # a collection stops every thread: none looks at what is loaded by now
        on_ready(RunningGateway(gateway=gateway, session=sessions.open(None), token=token))
        await stop.wait()


class _Sessions:
    """Opens sessions; each has its own conversation."""

    gateway: Gateway

    def __init__(self, options: GatewayOptions, engine: Engine, renderer: ChatRenderer) -> None:
        self._options = options
        self._engine = engine
        self._renderer = renderer
        self._numbers = itertools.count()
        self._chats: dict[str, Chat] = {}

    def open(self, limits: SessionLimits | None) -> Session:
        name = f"session-{next(self._numbers)}"
        options = self._options
        sampling = Sampling(max_tokens=options.max_tokens, temperature=options.temperature)
        chat = Chat(self._engine, self._renderer, sampling, session=name)
        engine = self._engine
        drop_after = (lambda: engine.take_drop(name)) if isinstance(engine, ScriptedEngine) else None
        default = SessionLimits(calls=options.calls, sampled_tokens=options.tokens, seconds=options.seconds)
        session = self.gateway.open(chat, limits=limits or default, drop_after=drop_after)
        self._chats[session.id] = chat
        return session

    async def close(self, session: Session) -> None:
        await self.gateway.close(session)
        await self._chats.pop(session.id).close()


@asynccontextmanager
async def _open_engine(options: GatewayOptions) -> AsyncGenerator[tuple[Engine, ChatRenderer]]:
    if options.engine.startswith(SCRIPTED):
        script = read_script(Path(options.engine.removeprefix(SCRIPTED)))
        tokenizer, renderer = await asyncio.to_thread(_load_scripted_tokenizer, options, script)
        yield (
            ScriptedEngine(script, renderer, tokenizer, context_tokens=options.context_tokens),
            renderer,
        )
        return
    if options.model is None:
        raise PolicyError(f"{options.engine} needs the tokenizer of its model on this machine: pass --model")
    from hone.policy.engines.open import open_servers

    model = ModelSettings(path=options.model, renderer=options.renderer)
    model = await asyncio.to_thread(find_model, model)
    tokenizer, renderer = await asyncio.to_thread(_load_tokenizer, model)
    settings = ServerEngineSettings(
        kind=options.kind, urls=(options.engine,), context_tokens=options.context_tokens
    )
    async with open_servers(settings, model, tokenizer, logs=Path()) as fleet:
        await fleet.health()
        yield fleet, renderer


def _load_tokenizer(model: ModelSettings) -> tuple[PreTrainedTokenizerBase, ChatRenderer]:
    tokenizer = load_tokenizer(model.path)
    return tokenizer, make_renderer(tokenizer, model.renderer)


def _load_scripted_tokenizer(
    options: GatewayOptions, script: tuple[ScriptedReply, ...]
) -> tuple[PreTrainedTokenizerBase, ChatRenderer]:
    """Return the model's tokenizer and renderer; without a model, a byte-level one that encodes any text."""
    if options.model is not None:
        return _load_tokenizer(find_model(ModelSettings(path=options.model, renderer=options.renderer)))
    texts = [reply.content for reply in script]
    tokenizer = make_tokenizer(texts, TinyModelSettings(max_positions=options.context_tokens))
    return tokenizer, make_renderer(tokenizer, "qwen3")


def _token(options: GatewayOptions) -> str:
    """Return the token that administers sessions; a socket always has one, as other users may reach it."""
    if options.token_file is not None:
        return read_token(options.token_file)
    if options.socket is not None:
        return secrets.token_urlsafe(32)
    refuse_open_door(options.host, "")
    return ""
