"""A gateway with a scripted engine behind it, and what must hold of every session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from hone.policy.chat import Chat
from hone.policy.engine import Completion, Sampling
from hone.policy.gateway import Gateway, Session, open_gateway
from hone.policy.scripted import ScriptedCall, ScriptedEngine, ScriptedReply

SYSTEM = {"role": "system", "content": "You fix bugs."}
USER = {"role": "user", "content": "Fix the bug in `total_price`."}
BEGIN = [SYSTEM, USER]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("ls", "cat", "edit")
]
LOOK = ScriptedReply(
    content="I look.",
    reasoning="Where is it?",
    tool_calls=(
        ScriptedCall(name="ls", arguments={"path": "/é\n", "deep": True}),
        ScriptedCall(name="cat", arguments={"file": "shop.py", "lines": [1, 2.5, None]}),
    ),
)
DONE = ScriptedReply(content="Done.")
# Google's paths as `World.post` takes them: they complete the /v1 at the end of its base URL
GENERATE = "beta/models/m:generateContent"
STREAM = "beta/models/m:streamGenerateContent?alt=sse"


class Engine(ScriptedEngine):
    """A scripted engine that can be held, and told apart when it was reached."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.reached = asyncio.Semaphore(0)  # released once for each call
        self.open = asyncio.Event()
        self.open.set()
        self.calls = 0
        self.endless = False  # plays its first reply again and again

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Completion:
        self.calls += 1
        self.sampling = sampling
        self.reached.release()
        await self.open.wait()
        if self.endless:
            await self.release(session)
        return await super().generate(prompt_ids, sampling, session=session)


@dataclass
class World:
    gateway: Gateway
    engine: Engine
    chat: Chat
    session: Session
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.gateway.url}{self.session.path}"

    async def post(self, path: str, body: Any, **named: Any) -> tuple[int, Any]:
        """Status and JSON of the answer to a request below the session's base URL."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data, **named) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def chat_completion(self, messages: list[Any], **fields: Any) -> tuple[int, Any]:
        return await self.post("/chat/completions", {"model": "m", "messages": messages, **fields})

    def assert_exact(self) -> None:
        """The tree holds exactly the prompts and replies of the engine, each reply once."""
        paths = [self.chat.tree.tokens(call.node).tolist() for call in self.chat.calls]
        said = [
            [*prompt, *done.token_ids.tolist()]
            for prompt, done in zip(self.engine.prompts, self.engine.completions, strict=True)
        ]
        assert sorted(paths) == sorted(said)
        nodes = [node for node in self.chat.tree.nodes if node.sampled]
        assert sorted(node.tokens.tolist() for node in nodes) == sorted(
            done.token_ids.tolist() for done in self.engine.completions
        )
        assert sorted(node.logprobs.tolist() for node in nodes) == sorted(
            done.logprobs.tolist() for done in self.engine.completions
        )
        assert [exchange.index for exchange in self.session.exchanges] == list(range(len(nodes)))
        assert [exchange.reply.node for exchange in self.session.exchanges] == [
            call.node for call in self.chat.calls
        ]


@asynccontextmanager
async def open_world(
    renderer_and_tokenizer: Any,
    script: Sequence[ScriptedReply],
    *,
    keep_alive_s: float = 10.0,
    max_body_bytes: int = 1 << 20,
    context_tokens: int = 100_000,
    socket: Path | None = None,
    **named: Any,
) -> AsyncIterator[World]:
    """`named` are the arguments of `Gateway.open`. Exactness is checked at the end."""
    renderer, tokenizer = renderer_and_tokenizer
    engine = Engine(script, renderer, tokenizer, context_tokens=context_tokens)
    chat = Chat(engine, renderer, Sampling(max_tokens=1000, temperature=0.5), session="s")
    places: dict[str, Any] = {"port": 0} if socket is None else {"socket": socket}
    connector = None if socket is None else aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        open_gateway(**places, keep_alive_s=keep_alive_s, max_body_bytes=max_body_bytes) as gateway,
    ):
        drop_after = None if socket else (lambda: engine.take_drop("s"))
        session = gateway.open(chat, drop_after=drop_after, **named)
        world = World(gateway, engine, chat, session, http)
        yield world
        engine.open.set()
        await gateway.close(session)
        world.assert_exact()


def results(message: dict[str, Any], text: str = "out") -> list[dict[str, Any]]:
    """The conversation's next messages, in OpenAI's form, when each tool answered with `text`."""
    calls = message.get("tool_calls") or []
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
