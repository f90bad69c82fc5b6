"""Engine servers: run one in the foreground (`hone engine serve`), or detect what a server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.policy.engine import EngineError
from hone.policy.engines.client import Http, Refused, new_session
from hone.policy.engines.managed_server import CONTEXT_SLACK, ManagedServer, require_free
from hone.policy.engines.open import CLIENTS
from hone.policy.engines.preflight import run_preflight
from hone.policy.errors import PolicyError
from hone.policy.hub import find_model
from hone.policy.model import DEFAULT_CONTEXT, load_tokenizer, longest_context
from hone.policy.settings import ModelSettings, ServerEngineSettings

TEXT = "openai"
EXACT = ("vllm", "sglang")  # return token ids; /v1/models names them as owner
TIMEOUT_S = 10.0


def local_folder(model: Path) -> Path:
    """Return the folder of a model that is a folder or on the hub. Raises PolicyError."""
    return find_model(ModelSettings(path=model)).path.resolve()


def default_context(model: Path) -> int:
    """Return the context length of the model in a folder, at most DEFAULT_CONTEXT. Raises PolicyError."""
    length = longest_context(model)
    if length is None:
        raise PolicyError(f"{model / 'config.json'} has no max_position_embeddings: pass --context")
    return min(length, DEFAULT_CONTEXT)


async def serve(
    settings: ServerEngineSettings,
    model: ModelSettings,
    host: str,
    port: int,
    *,
    log: Path,
    say: Callable[[str], None],
    on_ready: Callable[[str], None],
) -> None:
    """Start a server, check it, and keep it running until this coroutine is cancelled.

    Raises EngineError if the server does not start or exits, PolicyError for a folder without a model.
    """
    require_free(host, port)
    tokenizer = load_tokenizer(model.path)
    managed = ManagedServer(f"{settings.kind} server", settings, model, log, say=say, address=(host, port))
    try:
        url = await managed.start()
        async with new_session() as session:
            client = CLIENTS[settings.kind](Http(session, url))
            await run_preflight(client, tokenizer, settings.context_tokens)
        on_ready(url)
        raise EngineError(await managed.ended())
    finally:
        await managed.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model in the server's list."""

    name: str
    root: str  # folder or name on the server's machine; may be empty
    context_tokens: int | None  # maximum for Hone; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    kind: str  # as `engine.kind`
    url: str  # as `engine.urls` has it
    served: tuple[Served, ...]  # empty if a text endpoint lists no models


def find_endpoint(url: str, kind: str | None = None, *, key: str | None = None) -> Endpoint:
    """Return the kind and models of a server; without `kind`, any server but vLLM and SGLang is text only.

    Blocks for a few seconds at most. Raises EngineError if the server does not answer, or is a vLLM server
    without the routes for token ids.
    """
    return asyncio.run(_find(url.rstrip("/"), kind, key))


async def _find(url: str, kind: str | None, key: str | None) -> Endpoint:
    base = url.removesuffix("/v1")
    async with new_session() as session:
        http = Http(session, base, key=key)
        prefix = "/v1"
        try:
            models = await http.get("/v1/models", timeout_s=TIMEOUT_S)
        except Refused as error:
            if error.status != 404 or base != url or kind in EXACT:
                raise EngineError(f"the model server at {url} lists no models: {error}") from error
            prefix, models = "", await _models_without_prefix(http, url)
        except EngineError as error:
            raise EngineError(
                f"the model server at {url} does not answer: {error}. Start it with `hone engine serve`, "
                "or correct the address"
            ) from error
        cards = _cards(url, models)
        owners = {str(card.get("owned_by")) for card in cards}
        kind = kind or next((known for known in EXACT if known in owners), TEXT)
        if kind == "vllm":
            await _require_tokens(http, url)
    slack = CONTEXT_SLACK.get(kind, 0)
    return Endpoint(
        kind=kind,
        url=base + prefix if kind == TEXT else base,
        served=tuple(_served(card, slack) for card in cards),
    )


async def _models_without_prefix(http: Http, url: str) -> Any:
    try:
        return await http.get("/models", timeout_s=TIMEOUT_S)
    except EngineError as error:
        raise EngineError(
            f"the server at {url} has no OpenAI API (/v1/models got HTTP 404; {error}): correct the "
            "address, or start a model server with `hone engine serve MODEL`"
        ) from error


async def _require_tokens(http: Http, url: str) -> None:
    try:
        await http.get("/weight_info", timeout_s=TIMEOUT_S)
    except Refused as error:
        raise EngineError(
            f"the vLLM server at {url} lacks the routes for token ids: start it with `hone engine serve "
            "MODEL --kind vllm`, or evaluate without token ids with --engine-kind openai"
        ) from error


def _cards(url: str, models: Any) -> list[Mapping[str, Any]]:
    data = models.get("data") if isinstance(models, Mapping) else None
    if not isinstance(data, list) or not all(isinstance(card, Mapping) and "id" in card for card in data):
        raise EngineError(f"the model server at {url} has no OpenAI API: correct the address")
    return data


def _served(card: Mapping[str, Any], slack: int) -> Served:
    length = card.get("max_model_len")
    return Served(
        name=str(card["id"]),
        root=str(card.get("root") or ""),
        context_tokens=length - slack if isinstance(length, int) else None,
    )
