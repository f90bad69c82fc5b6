"""`hone slime`: write what slime's hooks read, and run its training script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from hone.config import ConfigError, RunSettings
from hone.grading.assess import check_gradeable
from hone.integrations.rollouts.recipe import hub_or_folder, write_recipe
from hone.integrations.slime import COMMIT, VERSION
from hone.integrations.slime.options import command_line, script, slime_options
from hone.launch.rundir import claim, with_model
from hone.policy.hub import PIN, pin_model
from hone.tasks.sources import check_proven, load_splits
from hone.utils.errors import writing
from hone.utils.files import write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimePlan:
    """A run of slime, resolved; nothing is written or started yet."""

    settings: RunSettings
    recipe: Path  # read by the hooks
    config: Path  # names the recipe
    script: Path
    arguments: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.script), *self.arguments]


def plan_slime(
    settings: RunSettings, checkout: Path | None = None, overrides: Sequence[str] = ()
) -> SlimePlan:
    """Return the command line of a recipe; `overrides` are slime's and Megatron's own arguments, which win.

    `checkout`: of slime; None: the current directory. Raises ConfigError, PolicyError, TaskError.
    """
    if settings.model is None:
        raise ConfigError("model.path is missing: set it to a model folder, or to a model on the hub")
    folder = (settings.run_dir / "slime").resolve()
    config = folder / "config.yaml"
    options = slime_options(settings, hub_or_folder(settings.model.path), config, folder / "checkpoints")
    tasks = load_splits(settings.tasks).train
    check_gradeable(tasks)
    check_proven(settings.tasks, tasks)
    return SlimePlan(
        settings=settings,
        recipe=folder / "recipe.toml",
        config=config,
        script=(checkout or Path()) / script(settings),
        arguments=(*command_line(options), *overrides),
    )


def run_slime(settings: RunSettings, checkout: Path | None, overrides: Sequence[str] = ()) -> int:
    """Claim the run directory, write the recipe and run slime; return its exit code.

    Raises ConfigError, PolicyError, TaskError.
    """
    plan = plan_slime(settings, checkout, overrides)  # refused before anything is written
    require_checkout(plan.script)
    claim(settings)
    assert settings.model is not None, "the plan has checked it"
    pinned = with_model(settings, pin_model(settings.model, settings.run_dir / PIN).path)
    plan = plan_slime(pinned, checkout, overrides)
    write_files(plan)
    return subprocess.run(plan.command, check=False).returncode


def require_checkout(script: Path) -> None:
    """Raise ConfigError unless slime's script is there."""
    if not script.is_file() or not (script.parent / "slime").is_dir():
        raise ConfigError(
            f"{script.parent.resolve()} is no checkout of slime: pass --checkout, the directory of its "
            f"repository; Hone is tested with {VERSION} ({COMMIT})"
        )


def write_files(plan: SlimePlan) -> None:
    """Write the recipe that slime's hooks read, and the YAML that names it."""
    with writing(plan.recipe.parent, ConfigError):
        plan.recipe.parent.mkdir(parents=True, exist_ok=True)
        write_recipe(plan.recipe, plan.settings)
        write_file(plan.config, yaml.safe_dump({"hone_recipe": str(plan.recipe)}))
