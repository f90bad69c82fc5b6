"""What stands behind the address of an engine: which kind of server, and which models it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hone.policy.engine import EngineError
from hone.policy.engines.command import CONTEXT_SLACK
from hone.policy.engines.http import Http, Refused, new_session

TEXT = "openai"
EXACT = ("vllm", "sglang")  # give the ids that they sampled; a list of their models names them as its owner
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model as the server lists it."""

    name: str
    root: str  # the folder or name that it was loaded from, as the server's machine knows it; may be empty
    context_tokens: int | None  # that Hone may use; None: not told


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    kind: str  # as `engine.kind`
    url: str  # as `engine.urls` has it
    served: tuple[Served, ...]  # may be empty: not every text endpoint tells


def find_endpoint(url: str, kind: str | None = None, *, key: str | None = None) -> Endpoint:
    """Ask a server what it is. Without `kind`, vLLM and SGLang are recognised, and any other is text only.

    Blocks for a few seconds at most. Raises EngineError when nothing answers, or when a vLLM server lacks the
    routes that give tokens.
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
            prefix, models = "", await http.get("/models", timeout_s=TIMEOUT_S)
        except EngineError as error:
            raise EngineError(
                f"the model server at {url} does not answer: {error}. Start it (`hone engine serve` does) "
                "or mend the address"
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


async def _require_tokens(http: Http, url: str) -> None:
    try:
        await http.get("/weight_info", timeout_s=TIMEOUT_S)
    except Refused as error:
        raise EngineError(
            f"the vLLM server at {url} lacks the routes that give tokens: start it with `hone engine serve "
            "MODEL --kind vllm`, or go without them by --engine-kind openai"
        ) from error


def _cards(url: str, models: Any) -> list[Mapping[str, Any]]:
    data = models.get("data") if isinstance(models, Mapping) else None
    if not isinstance(data, list) or not all(isinstance(card, Mapping) and "id" in card for card in data):
        raise EngineError(f"the model server at {url} does not speak the OpenAI protocol: mend the address")
    return data


def _served(card: Mapping[str, Any], slack: int) -> Served:
    length = card.get("max_model_len")
    return Served(
        name=str(card["id"]),
        root=str(card.get("root") or ""),
        context_tokens=length - slack if isinstance(length, int) else None,
    )
