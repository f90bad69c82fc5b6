"""Recipes and the settings of a run.

settings = resolve("quickstart", ["train.steps=3"])
(settings.run_dir / "config.toml").write_text(dump(settings))
"""

from hone.config.fields import ConfigError, Setting, nearest, require_choice, walk
from hone.config.plan import Command, Plan, make_plan
from hone.config.recipes import Layer, assign, resolve
from hone.config.run import DemonstrationSettings, RunSettings
from hone.config.written import dump, fingerprint, identity_of, result_settings, same_results

__all__ = [
    "Command",
    "ConfigError",
    "DemonstrationSettings",
    "Layer",
    "Plan",
    "RunSettings",
    "Setting",
    "assign",
    "dump",
    "fingerprint",
    "identity_of",
    "make_plan",
    "nearest",
    "require_choice",
    "resolve",
    "result_settings",
    "same_results",
    "walk",
]
