"""Arguments that several functions of the front door share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hone.config import Command, ConfigError, Layer, RunSettings, assign, make_plan, resolve
from hone.config.fitting import refusal
from hone.config.placement import devices_of_run
from hone.launch.rundir import claimed, require_own
from hone.utils.devices import find_devices
from hone.utils.errors import UsageError

Recipe = str | Path | RunSettings
"""A recipe's file or name, or settings from `hone.config.resolve`."""
Overrides = Mapping[str, object]
"""Setting -> value, such as {"train.steps": 20, "sandbox.provider": "docker"}, as `--set` has them."""


def layers(overrides: Overrides | None) -> list[Layer]:
    """Return the settings that a caller changes; an error about one of them names `settings`."""
    return [
        assign("settings", name, str(value) if isinstance(value, Path) else value)
        for name, value in (overrides or {}).items()
    ]


def resolved(
    recipe: Recipe | None,
    overrides: Overrides | None,
    command: Command | None = None,
    base: Sequence[str | Layer] = (),
    without: Collection[str] = (),
) -> RunSettings:
    """Return the settings of a recipe, those in `without` left out, with `base` and then `overrides` on top.

    Raises ConfigError, and UsageError for overrides of settings that are resolved already.
    """
    if not isinstance(recipe, RunSettings):
        return resolve(recipe, [*base, *layers(overrides)], without=without, command=command)
    if overrides or base:
        changed = ", ".join(overrides or {}) or "other arguments"
        raise UsageError(f"these settings are resolved already: pass {changed} to hone.config.resolve")
    return recipe


def require_fits(settings: RunSettings, command: Command) -> None:
    """Raise ConfigError unless the work fits this machine; blocks."""
    if problem := refusal(settings, command, devices_of_run(settings, find_devices())):
        raise ConfigError(problem)


def require_possible(settings: RunSettings, command: Command) -> None:
    """Raise ConfigError unless the run directory is free and this machine can do the work; blocks."""
    require_own(claimed(settings, command))
    make_plan(settings, command).require_possible()
