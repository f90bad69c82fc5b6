"""Supervised training on demonstrations, which are recorded first if none are given.

The start model of a run is a tiny model with random weights, trained on demonstrations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.config import ConfigError, RunSettings
from hone.grading.assess import check_gradeable
from hone.launch.learner import open_learner
from hone.launch.metrics import open_metrics
from hone.launch.placement import place
from hone.launch.policy import Policy, load_policy, pin_policy
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim, replace_symlink, with_model
from hone.launch.runtime import Runtime, open_context, open_runtime
from hone.policy.chat import encode_conversation
from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from hone.policy.reply import ToolSpec
from hone.policy.tiny import make_tiny
from hone.rollout import demonstrations
from hone.rollout.conversations import load_examples
from hone.rollout.demonstrations import Demonstration
from hone.rollout.lock import RunLock
from hone.tasks.sources import load_splits
from hone.train.loss import CrossEntropy
from hone.train.sft import demonstration_samples
from hone.train.sft import sft as fit
from hone.types import Message, Task, TokenTree, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    run_dir: Path
    demonstrations: int
    checkpoint: Path  # transformers loads it
    loss: float | None  # of the last optimiser step; None when nothing was left to do


def sft(settings: RunSettings, reporter: Reporter) -> SftReport:
    """Train `settings.model` on the demonstrations; continue from the last checkpoint.

    The demonstrations come from `demonstrations.path` (a file, or a run with resolved rollouts), or are
    recorded first.
    """
    claim(settings)
    path = settings.demonstrations.path
    if path is None:
        return run_sft(settings, asyncio.run(_open_and_record(settings, reporter)), reporter)
    return run_sft(settings, load_examples(path), reporter)


async def _open_and_record(settings: RunSettings, reporter: Reporter) -> list[Demonstration]:
    async with open_runtime(settings) as runtime:
        tasks = load_splits(settings.tasks).train
        check_gradeable(tasks)
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
    """Train in a claimed run directory from its last checkpoint; blocks."""
    pin_policy(settings)
    policy = load_policy(place(settings, "sft"))
    _require_thinking(settings, policy, examples)

    def encode(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenTree:
        return encode_conversation(policy.renderer, policy.tokenizer, messages, tools=tools)

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

        def on_step(step: int, steps: int, measured: Mapping[str, float]) -> None:
            nonlocal last
            last = measured
            stage.set_done(step + 1, steps)
            stage.set_status(f"loss {measured['loss']:.3f}  {measured['tokens_per_s']:.0f} tokens/s")

        checkpoint = fit(
            learner,
            demonstration_samples(examples, encode),
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


def _require_thinking(
    settings: RunSettings, policy: Policy, examples: Sequence[Demonstration | Trajectory]
) -> None:
    """Raise ConfigError for conversations whose prompts tell the model something else about reasoning."""
    assert settings.model is not None, "it is loaded"
    thinking = settings.model.thinking
    others = sum(isinstance(each, Demonstration) and each.thinking == (not thinking) for each in examples)
    if not others:
        return
    try:
        make_renderer(policy.tokenizer, settings.model.renderer, thinking=not thinking)
    except PolicyError:
        return  # the prompts of this family say nothing about it
    raise ConfigError(
        f"{others} of {len(examples)} conversations of {settings.demonstrations.path} have enable_thinking = "
        f"{str(not thinking).lower()}, but model.thinking is {str(thinking).lower()}: set model.thinking = "
        f"{str(not thinking).lower()}" + ("" if others == len(examples) else ", and train on one kind only")
    )


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

    Returns `run_dir/start`, a link to the model, and the demonstrations.
    """
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
    claim(below)
    return run_sft(below, recorded, reporter).checkpoint


def _texts(recorded: Sequence[Demonstration]) -> Iterator[str]:
    """Yield all text that the model reads and writes, for its tokenizer."""
    for demonstration in recorded:
        yield from (json.dumps(tool) for tool in demonstration.tools)
        for message in demonstration.messages:
            yield str(message["content"] or "")
            yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())
