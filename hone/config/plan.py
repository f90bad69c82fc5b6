"""Estimates of a run's needs from its settings (`--dry-run`).

All figures are upper bounds; nothing is loaded or started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone.agents.scaffold import load_scaffold
from hone.agents.settings import AgentSettings, BashAgentSettings, BlackboxAgentSettings
from hone.config.fields import ConfigError
from hone.config.run import RunSettings
from hone.config.shapes import Shape, folder_shape, known_shape, tiny_shape
from hone.evaluate.settings import parse_slice
from hone.policy.settings import (
    LocalEngineSettings,
    OpenAIEngineSettings,
    ServerEngineSettings,
)
from hone.tasks.settings import SelectSettings
from hone.tasks.sources import CURRICULUM, load_splits

Command = Literal["sft", "train", "eval", "quickstart"]
GIB = 2**30
FLOAT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    run_dir: Path
    model: str
    parameters: int | None  # None: no model is used
    tasks: dict[str, int]  # of each split
    steps: int
    rollouts: int
    tokens: int  # through the model, including prompts
    sandboxes: int  # concurrent
    engine: str  # "" if none is used
    judge: str  # "" if none is used
    memory_gib: dict[str, float]  # by component
    missing: tuple[str, ...] = ()  # missing prerequisites, with the command that provides each
    unused: tuple[str, ...] = ()  # keys of the agent's prompts without effect


def make_plan(settings: RunSettings, command: Command) -> Plan:
    """Return the plan of a command.

    Raises ConfigError if the recipe lacks a setting, TaskError for a bad task file, ScaffoldError for bad
    prompts or a bad program of the agent.

    A task file or a well-known model that does not exist is listed in `missing`.
    """
    shape, model = _model(settings, command)
    sizes = _set_sizes(settings)
    steps, rollouts = _work(settings, command, sizes)
    memory: dict[str, float] = {}
    remote = command == "eval" and settings.engine.addresses  # servers hold the model
    if shape is not None and not remote:
        memory = {name: size / GIB for name, size in _model_bytes(settings, shape, command).items()}
    judge = settings.judge_as_policy() if _judges(settings, command) else None
    if judge is not None:
        memory |= {f"{name}, judge": size for name, size in _judge_gib(judge).items()}
    sandboxes = 0 if command == "sft" else settings.rollout.concurrent_episodes
    memory["sandboxes"] = sandboxes * settings.sandbox.memory_mib / 1024
    return Plan(
        run_dir=settings.run_dir,
        model=model,
        parameters=None if shape is None else shape.parameters,
        tasks=sizes,
        steps=steps,
        rollouts=rollouts,
        tokens=0 if shape is None else rollouts * settings.engine.context_tokens,
        sandboxes=sandboxes,
        engine="" if command == "sft" or not _uses_policy(settings, command) else _engine(settings),
        judge="" if judge is None else f"{_model(judge, 'eval')[1]}, {_engine(judge)}",
        memory_gib=memory,
        missing=tuple(_missing(settings, command)),
        unused=() if command == "sft" else _unused(settings.agent),
    )


def _unused(agent: AgentSettings) -> tuple[str, ...]:
    """Return the unused keys of the agent's prompts; loads its program to check it."""
    if isinstance(agent, BlackboxAgentSettings):
        from hone.agents.blackbox.program import load_program  # imported on use: loads the web server

        load_program(agent.program)
    if isinstance(agent, BashAgentSettings) and agent.kind == "bash":
        return load_scaffold(agent.prompts).unused
    return ()


def _model(settings: RunSettings, command: Command) -> tuple[Shape | None, str]:
    if not _uses_policy(settings, command):
        return None, f"none: the agent is {settings.agent.kind}"
    if isinstance(settings.engine, OpenAIEngineSettings):
        at = f" at {settings.engine.urls[0]}" if command == "eval" else ""
        return None, f"{settings.engine.model_name}{at}"
    if settings.model is None and (command == "quickstart" or settings.makes_model):
        return tiny_shape(settings.tiny_model), "created by the run"
    if settings.model is None:
        raise ConfigError("model.path is missing: set it in the recipe, or with --set model.path=FOLDER")
    name = str(settings.model.path)
    known = None if settings.model.path.exists() else known_shape(name)
    return known or folder_shape(settings.model.path), name


def _uses_policy(settings: RunSettings, command: Command) -> bool:
    """Return whether the command uses a policy."""
    return command != "eval" or settings.agent.uses_policy


def _judges(settings: RunSettings, command: Command) -> bool:
    return settings.judge.enabled and command in ("train", "quickstart")


def _judge_gib(judge: RunSettings) -> dict[str, float]:
    """Return the memory of the judge's engine by component."""
    shape, _ = _model(judge, "eval")
    if shape is None or judge.engine.addresses:
        return {}
    return {name: size / GIB for name, size in _model_bytes(judge, shape, "eval").items()}


def _engine(settings: RunSettings) -> str:
    """Describe the engine in a few words."""
    engine = settings.engine
    if isinstance(engine, LocalEngineSettings):
        return "local, in the same process"
    if not isinstance(engine, ServerEngineSettings) or engine.urls:
        return f"{engine.kind} at {', '.join(engine.urls)}"
    gpus = f", {engine.tensor_parallel} GPUs each" if engine.tensor_parallel > 1 else ""
    return (
        f"{engine.servers} {engine.kind} server{'s' if engine.servers > 1 else ''}, started by the run{gpus}"
    )


def _missing(settings: RunSettings, command: Command) -> Iterator[str]:
    if settings.model is not None and not settings.model.path.exists():
        name = settings.model.path
        yield f"the model: hf download {name} --local-dir {name}"
    if _judges(settings, command) and settings.judge.model and not settings.judge.model.path.exists():
        name = settings.judge.model.path
        yield f"the judge: hf download {name} --local-dir {name}"
    if settings.tasks.source != CURRICULUM and not Path(settings.tasks.source).exists():
        yield f"the tasks, in {settings.tasks.source}: hone tasks import --help, docs/05-tasks.md"


def _work(settings: RunSettings, command: Command, sizes: dict[str, int]) -> tuple[int, int]:
    """Return (optimizer or training steps, rollouts)."""
    demonstrations = settings.demonstrations.rollouts
    batches = -(-demonstrations // settings.sft.batch_size) * settings.sft.epochs
    sampled = settings.train.steps * settings.groups_per_step * settings.rollout.group_size
    chosen = len(range(sizes[settings.evaluate.split])[parse_slice(settings.evaluate.slice)])
    evaluated = chosen * settings.evaluate.samples * max(1, len(settings.evaluate.temperatures))
    twice = 2 * (sizes["test"] + sizes["test_unseen"]) * settings.evaluate.samples
    return {
        "sft": (batches, demonstrations),
        "train": (settings.train.steps, sampled),
        "eval": (0, evaluated),
        "quickstart": (batches + settings.train.steps, demonstrations + sampled + twice),
    }[command]


def _set_sizes(settings: RunSettings) -> dict[str, int]:
    """Return the number of tasks of each split; 0 for a missing task file."""
    tasks = settings.tasks
    if tasks.source != CURRICULUM and not Path(tasks.source).exists():
        return dict.fromkeys(("train", "validation", "test", "test_unseen"), 0)
    if tasks.source != CURRICULUM or tasks.evaluation or tasks.select != SelectSettings():
        return {name: len(members) for name, members in load_splits(tasks).named()}
    sizes = (tasks.train, 0, tasks.test, tasks.unseen)
    return dict(zip(("train", "validation", "test", "test_unseen"), sizes, strict=True))


def _model_bytes(settings: RunSettings, shape: Shape, command: Command) -> dict[str, float]:
    """Return the bytes of weights, gradients, AdamW state, KV cache and logits."""
    dtype = "float32" if settings.model is None else settings.model.dtype
    weights = shape.parameters * FLOAT_BYTES[dtype]
    token = shape.kv_bytes(FLOAT_BYTES[dtype])
    engine = settings.engine
    needs: dict[str, float] = {"weights": weights}
    if command == "eval" and engine.kind != "local":
        needs = {}  # servers hold them
    if command != "sft" and isinstance(engine, LocalEngineSettings):
        conversations = engine.max_batch + engine.cached_sessions
        needs["KV cache"] = conversations * engine.context_tokens * token
    if command != "sft" and isinstance(engine, ServerEngineSettings) and engine.managed:
        needs["weights of servers"] = engine.servers * weights
        needs["KV cache of servers"] = engine.servers * engine.max_batch * engine.context_tokens * token
    if command != "eval":
        sft, train = settings.sft.workers, settings.train.batch.workers
        workers = {"sft": sft, "train": train}.get(command, max(sft, train))
        needs["gradients and AdamW"] = (2 + workers) * weights
        needs["logits"] = 3 * settings.train.batch.logit_tokens * shape.vocab_size * 4
    if command in ("train", "quickstart") and settings.train.loss.kl_coef > 0:
        needs["reference model"] = weights
    return needs
