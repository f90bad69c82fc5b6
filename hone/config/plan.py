"""Estimates of a run's needs from its settings (`--dry-run`).

Tokens and memory are upper bounds; nothing is loaded or started.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hone.agents.scaffold import load_scaffold
from hone.agents.settings import AgentSettings, BashAgentSettings, BlackboxAgentSettings
from hone.config.device_plan import MachinePlan, plan_devices
from hone.config.fields import ConfigError
from hone.config.fitting import refusal
from hone.config.models import policy_shape, uses_policy
from hone.config.placement import ENGINES, devices_of_run, resolve_placement
from hone.config.run import SAMPLING, Command, RunSettings
from hone.config.warnings import cpu_problem, prompt_problem
from hone.config.written import value_of
from hone.evaluate.settings import parse_slice
from hone.grading.assess import check_gradeable
from hone.policy.hub import cached_model, hub_name
from hone.policy.settings import (
    LocalEngineSettings,
    ModelSettings,
    ServerEngineSettings,
    TinkerEngineSettings,
)
from hone.tasks.files import is_missing
from hone.tasks.settings import SelectSettings, TasksSettings
from hone.tasks.sources import CURRICULUM, load_splits
from hone.tasks.splits import Splits
from hone.train.ranks.calls import ADDRESS, KEY
from hone.types import Task
from hone.utils.devices import Devices, find_devices
from hone.utils.text import as_url

_FEW = 20  # tasks of the curriculum whose prompts are measured


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
    teacher: str  # the same
    sandboxes_gib: float  # at most, of all sandboxes
    machine: MachinePlan
    refusal: str  # why the run does not fit, and settings that do; "" if it fits
    downloads: tuple[str, ...] = ()  # models of the hub that are not in its cache
    missing: tuple[str, ...] = ()  # missing prerequisites, with the command that provides each
    variables: Mapping[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    """Setting -> the environment variable that gave its value, and the value."""
    unused: tuple[str, ...] = ()  # keys of the agent's prompts without effect
    warnings: tuple[str, ...] = ()  # what the run will meet, and what to do

    def require_possible(self) -> None:
        """Raise ConfigError if the run does not fit this machine, or lacks a prerequisite."""
        if self.refusal:
            raise ConfigError(self.refusal)
        if self.missing:
            raise ConfigError(f"missing prerequisites: {'; '.join(self.missing)}")


def make_plan(settings: RunSettings, command: Command, devices: Devices | None = None) -> Plan:
    """Return the plan of a command on `devices`, by default this machine and `placement.nodes` like it.

    Raises ConfigError if the recipe lacks a setting, TaskError for a bad task file, ScaffoldError for bad
    prompts or a bad program of the agent, PolicyError for a bad tokenizer.

    A task file that does not exist is listed in `missing`, a hub model that is not cached in `downloads`.
    """
    shape, model = policy_shape(settings, command)
    load = functools.cache(lambda: load_splits(settings.tasks))
    sizes = _set_sizes(settings, command, load)
    steps, rollouts = _work(settings, command, sizes)
    others = {
        name: f"{policy_shape(other, 'eval')[1]}, {_engine(other)}"
        for name, other in settings.beside_policy(command).items()
    }
    sandboxes = settings.rollout.sandboxes_at_once if command in SAMPLING else 0
    found = devices_of_run(settings, find_devices()) if devices is None else devices
    machine = plan_devices(settings, command, found)
    long, none_fits = prompt_problem(settings, command, lambda: _some_tasks(settings, command, load))
    warnings = (cpu_problem(settings, command, found, machine), "" if none_fits else long)
    return Plan(
        run_dir=settings.run_dir,
        model=model,
        parameters=None if shape is None else shape.parameters,
        tasks=sizes,
        steps=steps,
        rollouts=rollouts,
        tokens=0 if shape is None else rollouts * settings.engine.context_tokens,
        sandboxes=sandboxes,
        engine=_engine(settings) if command in SAMPLING and uses_policy(settings, command) else "",
        judge=others.get("judge", ""),
        teacher=others.get("teacher", ""),
        sandboxes_gib=sandboxes * settings.sandbox.memory_mib / 1024,
        machine=machine,
        refusal=refusal(settings, command, found) or (long if none_fits else ""),
        downloads=tuple(_downloads(settings, command)),
        missing=tuple(_missing(settings, command, found)),
        variables={path: (name, value_of(settings, path)) for path, name in settings.variables.items()},
        unused=_unused(settings.agent) if command in SAMPLING else (),
        warnings=tuple(filter(None, warnings)),
    )


def _unused(agent: AgentSettings) -> tuple[str, ...]:
    """Return the unused keys of the agent's prompts; loads its program to check it."""
    if isinstance(agent, BlackboxAgentSettings):
        from hone.agents.blackbox.program import load_program  # imported on use: loads the web server

        load_program(agent.program)
    if isinstance(agent, BashAgentSettings) and agent.kind == "bash":
        return load_scaffold(agent.prompts).unused
    return ()


def _engine(settings: RunSettings) -> str:
    """Describe the engine in a few words."""
    engine = settings.engine
    if isinstance(engine, LocalEngineSettings):
        return "local, in the same process"
    if isinstance(engine, TinkerEngineSettings):
        return "a Tinker service, at TINKER_BASE_URL"
    if not isinstance(engine, ServerEngineSettings) or engine.urls:
        return f"{engine.kind} at {', '.join(engine.urls)}"
    gpus = f", {engine.tensor_parallel} GPUs each" if engine.tensor_parallel > 1 else ""
    return (
        f"{engine.servers} {engine.kind} server{'s' if engine.servers > 1 else ''}, started by the run{gpus}"
    )


def _downloads(settings: RunSettings, command: Command) -> Iterator[str]:
    for model in (settings.model, *_others_models(settings, command).values()):
        if model is not None and hub_name(model.path) and cached_model(model) is None:
            yield str(model.path)


def _others_models(settings: RunSettings, command: Command) -> dict[str, ModelSettings | None]:
    """Return name -> the model of its own; the judge may have none."""
    own = {"judge": settings.judge.model, "teacher": settings.train.distill.model}
    return {name: own[name] for name in settings.beside_policy(command)}


def _missing(settings: RunSettings, command: Command, devices: Devices) -> Iterator[str]:
    for name, model in _others_models(settings, command).items():
        if model is not None and not hub_name(model.path) and not model.path.exists():
            setting = ENGINES[name].replace("engine", "model.path")
            yield f"the {name}'s model, in {model.path}: set {setting} to a folder or to a model on the hub"
    for source in _missing_sources(settings.tasks):
        if url := as_url(source):
            yield f"the tasks: {url} is a URL; pass a file, or the name of a data set on the hub (OWNER/NAME)"
        else:
            yield f"the tasks, in {source}: see hone tasks import --help"
    agent = settings.agent
    if command in SAMPLING and agent.kind == "mini-swe-agent" and find_spec("minisweagent") is None:
        yield "the package of agent.kind = \"mini-swe-agent\": pip install 'hone-rl[mini-swe-agent]'"
    unset = [name for name in (ADDRESS, KEY) if not os.environ.get(name)]
    if unset and _has_ranks_elsewhere(settings, command, devices):
        variables = " and ".join(unset)
        worker = "torchrun ... -m hone.train.ranks.worker"
        yield f"the ranks of the other machines: set {variables} and start `{worker}` on each machine"


def _has_ranks_elsewhere(settings: RunSettings, command: Command, devices: Devices) -> bool:
    """Return whether the trainer has GPUs of other machines, where the run starts no ranks."""
    try:
        gpus = resolve_placement(settings, devices, command).trainer_gpus
    except ConfigError:  # which the machine's plan holds
        return False
    return any(gpu >= devices.gpus_per_node for gpu in gpus)


def _work(settings: RunSettings, command: Command, sizes: dict[str, int]) -> tuple[int, int]:
    """Return (optimizer or training steps, rollouts)."""
    demonstrations = settings.demonstrations.rollouts
    batches = -(-demonstrations // settings.sft.batch_size) * settings.sft.epochs
    sampled = settings.train.steps * settings.groups_per_step * settings.rollout.group_size
    chosen = len(range(sizes[settings.evaluate.split])[parse_slice(settings.evaluate.slice)])
    evaluated = chosen * settings.evaluate.samples * max(1, len(settings.evaluate.temperatures))
    validate = settings.train.validate
    sampled += validate.count(settings.train.steps) * sizes["validation"] * validate.samples
    twice = 2 * (sizes["test"] + sizes["test_unseen"]) * settings.evaluate.samples
    return {
        "sft": (batches, demonstrations),
        "train": (settings.train.steps, sampled),
        "replay": (settings.train.steps, 0),
        "eval": (0, evaluated),
        "quickstart": (batches + settings.train.steps, demonstrations + sampled + twice),
    }[command]


def _missing_sources(tasks: TasksSettings) -> list[str]:
    sources = (tasks.source, tasks.validation_source, tasks.evaluation)
    named = [str(each) for each in sources if each is not None and str(each) != CURRICULUM]
    return [each for each in named if is_missing(each)]


def _set_sizes(settings: RunSettings, command: Command, load: Callable[[], Splits]) -> dict[str, int]:
    """Return the number of tasks of each split; 0 for a missing task file.

    Raises TaskError for tasks of the command that cannot be graded.
    """
    tasks = settings.tasks
    if any(_missing_sources(tasks)):
        return dict.fromkeys(("train", "validation", "test", "test_unseen"), 0)
    if not _is_curriculum(tasks):
        splits = load()
        used = _used_splits(settings, command)
        check_gradeable(task for name, members in splits.named() if name in used for task in members)
        return {name: len(members) for name, members in splits.named()}
    sizes = (tasks.train, tasks.validation, tasks.test, tasks.unseen)
    return dict(zip(("train", "validation", "test", "test_unseen"), sizes, strict=True))


def _used_splits(settings: RunSettings, command: Command) -> tuple[str, ...]:
    """Return the names of the sets whose tasks the command uses."""
    return (settings.evaluate.split,) if command == "eval" else ("train", "validation")


def _is_curriculum(tasks: TasksSettings) -> bool:
    """Return whether all tasks are generated and used, so that their number needs none of them."""
    files = tasks.evaluation or tasks.validation_source
    return tasks.source == CURRICULUM and not files and tasks.select == SelectSettings()


def _some_tasks(settings: RunSettings, command: Command, load: Callable[[], Splits]) -> list[Task]:
    """Return the tasks of the command; of the curriculum, only the first ones."""
    tasks = settings.tasks
    if any(_missing_sources(tasks)):
        return []
    if _is_curriculum(tasks):
        few = {name: min(getattr(tasks, name), _FEW) for name in ("train", "validation", "test", "unseen")}
        splits = load_splits(tasks.model_copy(update=few))
    else:
        splits = load()
    used = _used_splits(settings, command)
    return [task for name, members in splits.named() if name in used for task in members]
