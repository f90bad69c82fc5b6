"""Open a fleet from settings: start its servers or connect to running ones."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hone.policy.engines.client import EngineClient, Http, new_session
from hone.policy.engines.fleet import Fleet, open_fleet
from hone.policy.engines.managed_server import ExternalServer, ManagedServer, ServerDevices, ServerProcess
from hone.policy.engines.replica import FleetSpec
from hone.policy.engines.sglang import Sglang
from hone.policy.engines.vllm import Vllm
from hone.policy.errors import PolicyError
from hone.policy.model import read_config
from hone.policy.settings import ModelSettings, RemoteEngineSettings, ServerEngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLIENTS: dict[str, Callable[[Http], EngineClient]] = {"vllm": Vllm, "sglang": Sglang}


@asynccontextmanager
async def open_servers(
    settings: ServerEngineSettings,
    model: ModelSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    logs: Path,
    say: Callable[[str], None] = lambda _: None,
    gpus: Sequence[tuple[int, ...]] = (),
    sleeps: bool = False,
    partial: bool = False,
) -> AsyncGenerator[Fleet]:
    """Open the servers of `settings` as one engine; servers of this run serve `model` and log to `logs`.

    `say` receives progress messages during the start. `gpus` are those of each server that the run starts;
    (): all servers may use all of them. With `sleeps`, `Fleet.asleep` works. `partial`: see
    `FleetSpec`. Raises PolicyError, EngineError.
    """
    key = read_api_key(settings)
    async with new_session() as session:
        servers = FleetSpec(
            processes=_server_processes(settings, model, logs, say, gpus, sleeps),
            client=lambda url: CLIENTS[settings.kind](Http(session, url, key=key)),
            tokenizer=tokenizer,
            vocabulary=vocabulary_size(model.path, tokenizer),
            settings=settings,
            partial=partial,
        )
        async with open_fleet(servers) as fleet:
            yield fleet


def vocabulary_size(model: Path, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the size of the model's vocabulary; it is often larger than the tokenizer's."""
    return max(read_config(model).get("vocab_size") or 0, len(tokenizer))


def read_api_key(settings: RemoteEngineSettings) -> str | None:
    """Return the API key of the servers, if any. Raises PolicyError if its variable is not set."""
    if not settings.api_key_env:
        return None
    key = os.environ.get(settings.api_key_env)
    if not key:
        raise PolicyError(
            f"the environment variable {settings.api_key_env} is not set: export the engine's key in it, or "
            "change engine.api_key_env"
        )
    return key


def _server_processes(
    settings: ServerEngineSettings,
    model: ModelSettings,
    logs: Path,
    say: Callable[[str], None],
    gpus: Sequence[tuple[int, ...]],
    sleeps: bool,
) -> list[ServerProcess]:
    if settings.urls:
        return [ExternalServer(url) for url in settings.urls]
    model = model.model_copy(update={"path": model.path.resolve()})
    return [
        ManagedServer(
            f"{settings.kind} server {number}",
            settings,
            model,
            logs / f"server-{number}.log",
            say=say,
            devices=ServerDevices(gpus=gpus[number] if gpus else (), sleeps=sleeps),
        )
        for number in range(settings.servers)
    ]
