"""`hone verl`: write what verl reads, and run its trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from hone.config import ConfigError, RunSettings
from hone.grading.assess import check_gradeable
from hone.integrations.peer import require
from hone.integrations.rollouts.recipe import hub_or_folder, write_recipe
from hone.integrations.verl import INSTALL, VERSION
from hone.integrations.verl.options import Files, command_line, verl_options
from hone.integrations.verl.rows import AGENT, dataset_rows
from hone.launch.rundir import claim, with_model
from hone.launch.tasks import require_validation_tasks
from hone.policy.hub import PIN, pin_model
from hone.tasks.sources import check_proven, load_splits
from hone.tasks.splits import Splits
from hone.types import Task
from hone.utils.errors import writing
from hone.utils.files import write_file

LOOP = "hone.integrations.verl.loop.HoneAgentLoop"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlPlan:
    """A run of verl, resolved; nothing is written or started yet."""

    settings: RunSettings
    files: Files
    splits: Splits
    arguments: tuple[str, ...]  # of the Python that runs verl

    @property
    def command(self) -> list[str]:
        return [sys.executable, *self.arguments]


def plan_verl(settings: RunSettings, overrides: Sequence[str] = ()) -> VerlPlan:
    """Return the command line of a recipe; `overrides` are verl's own settings, which win.

    Raises ConfigError, PolicyError, TaskError.
    """
    if settings.model is None:
        raise ConfigError("model.path is missing: set it to a model folder, or to a model on the hub")
    files = _files(settings)
    options = verl_options(settings, hub_or_folder(settings.model.path), files)
    splits = load_splits(settings.tasks)
    check_gradeable((*splits.train, *splits.validation))
    check_proven(settings.tasks, splits.train)
    require_validation_tasks(settings, splits.validation)
    if len(splits.train) < settings.groups_per_step:
        raise ConfigError(
            f"groups_per_step is {settings.groups_per_step} and the training set has {len(splits.train)} "
            "tasks, and verl wants a task for each group of a step: lower it, or add tasks"
        )
    arguments = ("-m", "verl.trainer.main_ppo", *command_line(options), *overrides)
    return VerlPlan(settings=settings, files=files, splits=splits, arguments=arguments)


def _files(settings: RunSettings) -> Files:
    folder = (settings.run_dir / "verl").resolve()
    validates = settings.train.validate.every > 0
    return Files(
        train=folder / "train.parquet",
        validation=folder / ("validation.parquet" if validates else "train.parquet"),
        agent_loop=folder / "agent_loop.yaml",
        recipe=folder / "recipe.toml",
        output=folder / "checkpoints",
    )


def run_verl(settings: RunSettings, overrides: Sequence[str] = ()) -> NoReturn:
    """Claim the run directory, write verl's files and become its trainer.

    Raises PeerMissing, ConfigError, PolicyError, TaskError.
    """
    require_verl()
    plan_verl(settings, overrides)  # refused before anything is written
    claim(settings)
    assert settings.model is not None, "the plan has checked it"
    plan = plan_verl(with_model(settings, pin_model(settings.model, settings.run_dir / PIN).path), overrides)
    write_files(plan)
    sys.stdout.flush()
    os.execv(plan.command[0], plan.command)  # noqa: S606 - signals and the exit code are then its own


def require_verl() -> None:
    """Raise PeerMissing unless the tested version is installed beside this Python."""
    require("verl", f"=={VERSION}", INSTALL)


def write_files(plan: VerlPlan) -> None:
    """Write the data set, the recipe that verl's workers read, and the YAML of the agent loop."""
    files = plan.files
    with writing(files.train.parent, ConfigError):
        files.train.parent.mkdir(parents=True, exist_ok=True)
        _write_rows(files.train, plan.splits.train, "train")
        if files.validation != files.train:
            _write_rows(files.validation, plan.splits.validation, "validation")
        write_recipe(files.recipe, plan.settings)
        write_file(files.agent_loop, yaml.safe_dump(agent_loop_config(plan)))


def agent_loop_config(plan: VerlPlan) -> list[dict[str, Any]]:
    """Return the content of verl's YAML of agent loops."""
    return [{"name": AGENT, "_target_": LOOP, "recipe": str(plan.files.recipe)}]


def _write_rows(path: Path, tasks: Sequence[Task], split: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(dataset_rows(tasks, split)), path)
