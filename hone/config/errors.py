"""The one error of a run's settings."""

from __future__ import annotations


class ConfigError(Exception):
    """A recipe or a `--set` cannot be used; one sentence says where, what is wrong and what to do."""
