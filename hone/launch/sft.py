"""Supervised training on demonstrations, which are recorded first if none are given.

The start model of a run is a tiny model with random weights, trained on demonstrations.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config import ConfigError, RunSettings
from hone.grading.assess import check_gradeable
from hone.launch.learner import open_learner
from hone.launch.metrics import open_metrics
from hone.launch.placement import place
from hone.launch.policy import Policy, load_policy, pin_policy
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim, replace_symlink, require_own, with_model
from hone.launch.runtime import Runtime, open_context, open_runtime
from hone.policy.chat import encode_conversation
from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from hone.policy.rendering import ChatRenderer
from hone.policy.reply import ToolSpec
from hone.policy.tiny import make_tiny
from hone.policy.vocabulary import knows_tokens
from hone.rollout import demonstrations
from hone.rollout.demonstrations import Demonstration
from hone.rollout.lock import RunLock
from hone.rollout.selection import select
from hone.tasks.sources import load_splits
from hone.train.loss import CrossEntropy
from hone.train.sft import Encode, demonstration_samples
from hone.train.sft import sft as fit
from hone.types import Message, Task, TokenTree, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    run_dir: Path
    demonstrations: int
    checkpoint: Path  # transformers loads it
    loss: float | None  # of the last optimiser step; None when nothing was left to do


Record = Coroutine[Any, Any, list[Demonstration]]


def sft(
    settings: RunSettings,
    reporter: Reporter,
    *,
    run: Callable[[Record], list[Demonstration]] = asyncio.run,
) -> SftReport:
    """Train `settings.model` on the demonstrations; continue from the last checkpoint.

    The demonstrations come from `demonstrations.path`, or are recorded first. What is kept of those, and why
    the others are not, is noted and written to `selection.jsonl` of the run directory.

    `run`: runs a coroutine to its end.
    """
    require_own(settings)
    wanted = settings.demonstrations
    if not wanted.path:
        return run_sft(settings, run(_open_and_record(settings, reporter)), reporter)
    selection = select(wanted.path, only_resolved=wanted.only_resolved, per_task=wanted.per_task)
    selection.write(settings.run_dir / "selection.jsonl")
    for line in selection.table():
        reporter.note(line)
    if not selection.examples:
        raise ConfigError(
            f"none of the {len(selection.choices)} conversations of demonstrations.path is left to train on: "
            f"{settings.run_dir / 'selection.jsonl'} says why; name others"
        )
    return run_sft(settings, selection.examples, reporter)


async def _open_and_record(settings: RunSettings, reporter: Reporter) -> list[Demonstration]:
    async with open_runtime(settings) as runtime:
        tasks = load_splits(settings.tasks).train
        check_gradeable(tasks)
        claim(settings)
        return await record(settings, runtime, reporter, tasks=tasks)


async def record(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, *, tasks: Sequence[Task]
) -> list[Demonstration]:
    """Record `demonstrations.rollouts` demonstrations below the run directory, in real sandboxes."""
    wanted = settings.demonstrations
    with reporter.stage("recording demonstrations", wanted.rollouts) as stage:
        path = settings.run_dir / "demonstrations.jsonl"
        async with open_context(runtime, settings, wanted.agent, None) as context:
            return await demonstrations.record(
                tasks, context, path, count=wanted.rollouts, progress=stage.set_done
            )


def run_sft(
    settings: RunSettings, examples: Sequence[Demonstration | Trajectory], reporter: Reporter
) -> SftReport:
    """Train from the last checkpoint; claim the run directory once the learner is open. Blocks."""
    pin_policy(settings)
    policy = load_policy(place(settings, "sft"))

    def keeps_tokens(trajectory: Trajectory) -> bool:
        return knows_tokens(policy.tokenizer, trajectory)

    last: Mapping[str, float] = {}
    with (
        RunLock(settings.run_dir),
        open_learner(
            policy,
            settings.train,
            objective=CrossEntropy(),
            optimizer=settings.sft.optimizer,
            passes=settings.sft,
            run_dir=settings.run_dir,
        ) as learner,
        open_metrics(settings, reporter, kind="sft") as metrics,
        reporter.stage("supervised training") as stage,
    ):
        claim(settings)

        def on_step(step: int, steps: int, measured: Mapping[str, float]) -> None:
            nonlocal last
            last = measured
            stage.set_done(step + 1, steps)
            stage.set_status(f"loss {measured['loss']:.3f}  {measured['tokens_per_s']:.0f} tokens/s")

        checkpoint = fit(
            learner,
            demonstration_samples(examples, encoder(policy), keeps_tokens),
            settings.sft,
            run_dir=settings.run_dir,
            tokenizer=policy.tokenizer,
            metrics=metrics,
            on_step=on_step,
        )
    return SftReport(
        run_dir=settings.run_dir,
        demonstrations=len(examples),
        checkpoint=checkpoint,
        loss=last.get("loss"),
    )


def encoder(policy: Policy) -> Encode:
    """Return a function that tokenises a conversation with the policy's renderer, its tools and its thinking.

    It raises ConfigError for an `enable_thinking` that the renderer cannot write, PolicyError for messages
    that it cannot render.
    """
    renderer = functools.cache(functools.partial(_renderer, policy))

    def encode(messages: Sequence[Message], tools: Sequence[ToolSpec], thinking: bool | None) -> TokenTree:
        return encode_conversation(renderer(thinking), policy.tokenizer, messages, tools=tools)

    return encode


def _renderer(policy: Policy, thinking: bool | None) -> ChatRenderer:
    """Return the renderer of conversations whose prompts do or do not let the model reason.

    None: as `model.thinking` says. A family whose prompts say nothing about it has one renderer. Raises
    ConfigError where the chat template has that switch and the renderer has not.
    """
    if thinking is None or thinking == policy.settings.thinking:
        return policy.renderer
    try:
        return make_renderer(policy.tokenizer, policy.settings.renderer, thinking=thinking)
    except PolicyError as error:
        if "enable_thinking" in str(policy.tokenizer.chat_template):
            raise ConfigError(
                f"conversations with enable_thinking = {str(thinking).lower()} cannot be rendered: {error}"
            ) from error
        return policy.renderer


def split_demonstrated(settings: RunSettings, tasks: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return the tasks for demonstrations and the tasks for RL, which are disjoint.

    Raises ConfigError if no task is left for RL.
    """
    shown = settings.demonstrations.rollouts
    if len(tasks) <= shown:
        raise ConfigError(
            f"no task is left for RL after the demonstrations: set tasks.train above the {shown} of "
            "demonstrations.rollouts"
        )
    return tasks[:shown], tasks[shown:]


async def make_start_model(
    settings: RunSettings, runtime: Runtime, reporter: Reporter, demonstrated: Sequence[Task]
) -> tuple[Path, list[Demonstration]]:
    """Record demonstrations and train a random tiny model on them; continue an earlier call.

    Returns `run_dir/start`, a link to the model, and the demonstrations. Raises ConfigError for a learner at
    a service, which serves a model that exists.
    """
    if settings.train.learner == "tinker":
        raise ConfigError(
            "a Tinker service trains the model that it was started with: set model.path to it, such as one "
            "that `hone quickstart` has made"
        )
    recorded = await record(settings, runtime, reporter, tasks=demonstrated)
    taught = await asyncio.to_thread(_train_on, settings, recorded, reporter)
    return replace_symlink(settings.run_dir / "start", taught), recorded


def _train_on(settings: RunSettings, recorded: Sequence[Demonstration], reporter: Reporter) -> Path:
    """Return the checkpoint trained on the demonstrations; all weights, for random ones need more than
    adapters."""
    base = settings.run_dir / "base"
    if not base.is_dir():
        partial = base.with_name(".base.partial")
        make_tiny(_texts(recorded), partial, settings.tiny_model)
        partial.rename(base)
    train = settings.train.model_copy(update={"lora": None})
    below = with_model(
        settings.model_copy(update={"run_dir": settings.run_dir / "sft", "train": train}), base
    )
    return run_sft(below, recorded, reporter).checkpoint


def _texts(recorded: Sequence[Demonstration]) -> Iterator[str]:
    """Yield all text that the model reads and writes, for its tokenizer."""
    for demonstration in recorded:
        yield from (json.dumps(tool) for tool in demonstration.tools)
        for message in demonstration.messages:
            yield str(message["content"] or "")
            yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())
