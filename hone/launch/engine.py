"""Runs one engine server in the foreground (`hone engine serve`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hone.policy.engine import EngineError
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.managed_server import ManagedServer, require_free
from hone.policy.engines.open import CLIENTS
from hone.policy.engines.replica import run_preflight
from hone.policy.errors import PolicyError
from hone.policy.model import DEFAULT_CONTEXT, load_tokenizer, longest_context
from hone.policy.settings import ModelSettings, ServerEngineSettings


def default_context(model: Path) -> int:
    """Return the model's context length, at most DEFAULT_CONTEXT. Raises PolicyError if unknown."""
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
    tokenizer = load_tokenizer(model.path)
    require_free(host, port)
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
