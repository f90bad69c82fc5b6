"""The teacher of on-policy distillation: checked before a run starts, opened beside its engine."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hone.config import ConfigError, RunSettings
from hone.launch.placement import trainer_device
from hone.launch.policy import Policy, open_engine
from hone.policy.hub import PIN, pin_model
from hone.policy.model import load_tokenizer, read_config
from hone.train.distill import Teacher
from hone.types import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Distill = Callable[[Sequence[Sample]], Awaitable[tuple[list[Sample], dict[str, float]]]]


def find_teacher(settings: RunSettings, policy: Policy) -> Policy | None:
    """Return the teacher's model and tokenizer; None without `train.distill`. Blocks.

    Raises ConfigError for a tokenizer with another vocabulary than the policy's, PolicyError for an unusable
    model.
    """
    if not settings.train.distill.enabled:
        return None
    own = settings.teacher_as_policy()
    assert own.model is not None, "the settings require it"
    own.run_dir.mkdir(parents=True, exist_ok=True)
    model = pin_model(own.model, own.run_dir / PIN)
    tokenizer = load_tokenizer(model.path)
    require_same_vocabulary(policy.tokenizer, tokenizer)
    rows = [read_config(folder).get("vocab_size") or 0 for folder in (policy.settings.path, model.path)]
    if rows[0] > rows[1]:
        raise ConfigError(
            f"the policy's model can sample {rows[0]} token ids and the teacher in {model.path} knows "
            f"{rows[1]}: choose a teacher with as many, or train a smaller vocabulary"
        )
    return dataclasses.replace(policy, settings=model, tokenizer=tokenizer, device=trainer_device(own))


@asynccontextmanager
async def open_teacher(
    settings: RunSettings, teacher: Policy | None, say: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Distill | None]:
    """Open the teacher's engine, check it and yield what scores the samples of a step.

    Yields None without a teacher. Raises EngineError, PolicyError.
    """
    if teacher is None:
        yield None
        return
    async with open_engine(teacher, settings.teacher_as_policy(), say) as engine:
        await engine.health()
        yield Teacher(
            score=engine.score,
            settings=settings.train.distill,
            attempts=settings.rollout.attempts,
            delays=settings.rollout.retry_delays,
        ).distill


def require_same_vocabulary(policy: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError unless both tokenizers have the same tokens with the same ids."""
    mine, theirs = policy.get_vocab(), teacher.get_vocab()
    differing = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    if differing:
        token = differing[0]
        ids = [f"id {vocab[token]}" if token in vocab else "absent" for vocab in (mine, theirs)]
        raise ConfigError(
            f"the teacher's tokenizer has another vocabulary than the policy's: {len(differing)} tokens "
            f"differ, such as {token!r} ({ids[0]} in the policy's, {ids[1]} in the teacher's); set "
            "train.distill.model to a model of the policy's family"
        )
