"""slime's hooks: each is named on the command line that `hone slime` prints.

`args.hone_recipe` is the recipe. A rollout that slime cuts short, since its batch is full, ends at once.
"""

# slime is a checkout, and not installed where Hone is developed
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.config import RunSettings, resolve
from hone.integrations.rollouts.engine import Generate
from hone.integrations.rollouts.process import shared_service
from hone.integrations.slime.samples import (
    KEY,
    Nested,
    advantages,
    completion_of,
    dropped_reason,
    fill_samples,
    metrics,
    payload,
)
from hone.policy.engine import Completion, Sampling
from hone.rollout.groups import seed_of
from hone.types import Int32, Trajectory

_POLL_S = 0.2  # between two looks whether slime cuts its rollouts short


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """--custom-generate-function-path: run and grade one rollout; return a sample for each branch."""
    recipe = Path(args.hone_recipe)
    service = await shared_service(recipe, _router(args))
    task_id = sample.metadata[KEY]["task_id"]
    rollout = service.rollout(
        service.tasks[task_id],
        group_id=f"g{sample.group_index}",
        index=sample.index % args.n_samples_per_prompt,
        seed=seed_of(service.settings.seed, task_id, sample.index),
    )
    trajectory = await _unless_aborted(args, rollout)
    if trajectory is None:
        sample.status = type(sample).Status.ABORTED
        sample.rollout_id = sample.index
        return [sample]
    return fill_samples(sample, trajectory, masked=service.is_masked(trajectory))


async def _unless_aborted(args: Any, rollout: Any) -> Trajectory | None:
    """Return the trajectory; None when slime aborts its rollouts meanwhile: the sandbox is then closed."""
    from slime.rollout.sglang_rollout import GenerateState

    state = GenerateState(args)
    running = asyncio.create_task(rollout)
    try:
        while not running.done() and not state.aborted:
            await asyncio.wait([running], timeout=_POLL_S)
        return running.result() if running.done() else None
    finally:
        running.cancel()
        await asyncio.wait([running])


def _router(args: Any) -> Generate:
    """Return the engine behind slime's router."""
    from slime.rollout.sglang_rollout import get_model_url
    from slime.utils.http_utils import post

    url, context_tokens = get_model_url(args, "default"), _settings(args).engine.context_tokens
    sticky = getattr(args, "router_policy", None) == "consistent_hashing"

    async def ask(prompt_ids: Int32, sampling: Sampling, *, session: str) -> Completion:
        headers = {"X-SMG-Routing-Key": session} if sticky else None
        body = payload(prompt_ids.tolist(), sampling, context_tokens=context_tokens)
        reply = await post(url, body, headers=headers)
        return completion_of(reply, sampling)

    return ask


async def reward(args: Any, samples: Nested, **_: Any) -> Any:
    """--custom-rm-path: return the reward of one sample, or of each in a list; None for a fault.

    `generate` has graded the rollout: its reward is in the metadata.
    """
    if isinstance(samples, (list, tuple)):
        return [await reward(args, sample) for sample in samples]
    return samples.metadata[KEY].get("reward")


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """--custom-reward-post-process-path: return raw rewards, and the advantages of the recipe's algorithm."""
    return advantages(samples, _settings(args).train.algorithm)


def filter_group(args: Any, group: Nested, **_: Any) -> Any:
    """--dynamic-sampling-filter-path: replace groups with a fault or, in some recipes, equal rewards."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    constant = _settings(args).rollout.replace_constant_groups > 0
    reason = dropped_reason(group, constant=constant)
    return DynamicFilterOutput(keep=reason is None, reason=reason)


def log_rollouts(
    rollout_id: int, args: Any, samples: Sequence[Any], extra: dict[str, Any] | None, seconds: float
) -> bool:
    """--custom-rollout-log-function-path: add Hone's metrics to slime's own, which still logs the others."""
    if extra is not None:
        extra.update(metrics(samples))
    return False


def _settings(args: Any) -> RunSettings:
    return _resolved(str(args.hone_recipe))


@functools.cache
def _resolved(recipe: str) -> RunSettings:
    return resolve(Path(recipe))
