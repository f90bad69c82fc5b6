"""The one error of a run's settings."""

from __future__ import annotations

from hone.utils.errors import HoneError


class ConfigError(HoneError):
    """A recipe or a `--set` cannot be used; one sentence says where, what is wrong and what to do."""

    exit_code = 2
