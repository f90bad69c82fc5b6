"""Opens the scorers of single turns: the judge, on its own engine, and the hidden tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from hone.config import ConfigError, RunSettings
from hone.grading.judge import Judge
from hone.grading.judge_prompt import control_tokens
from hone.launch.policy import open_chats
from hone.policy.model import load_tokenizer
from hone.rollout.scoring import Scorers


@asynccontextmanager
async def open_scorers(
    settings: RunSettings, say: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Scorers | None]:
    """Yield the scorers after a check of the judge's engine; None if no turn is scored.

    Raises ConfigError, EngineError, PolicyError.
    """
    if settings.judge.enabled:
        async with _open_judge(settings, say) as judge:
            yield Scorers(judge=judge, progress=settings.progress)
    else:
        yield Scorers(progress=settings.progress) if settings.progress.enabled else None


@asynccontextmanager
async def _open_judge(settings: RunSettings, say: Callable[[str], None]) -> AsyncGenerator[Judge]:
    own = settings.judge_as_policy()
    control: frozenset[str] = frozenset()
    if own.engine.kind != "openai":
        if own.model is None:
            raise ConfigError("judge.model.path is missing: set it to a folder that transformers loads")
        control = control_tokens(await asyncio.to_thread(load_tokenizer, own.model.path))
    async with open_chats(own, say) as new_chats:
        yield Judge(new_chats(own), settings.judge, control=control)
