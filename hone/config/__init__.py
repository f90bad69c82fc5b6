"""Recipes and the settings of a run.

settings = resolve("recipes/quickstart.toml", ["train.steps=3"])
(settings.run_dir / "config.toml").write_text(dump(settings))
"""

from hone.config.errors import ConfigError
from hone.config.fields import Setting, nearest, type_name, walk
from hone.config.recipes import resolve
from hone.config.run import DemonstrationSettings, RunSettings
from hone.config.written import dump, fingerprint

__all__ = [
    "ConfigError",
    "DemonstrationSettings",
    "RunSettings",
    "Setting",
    "dump",
    "fingerprint",
    "nearest",
    "resolve",
    "type_name",
    "walk",
]
