"""The base of every room's settings: frozen and documented; unknown keys are errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. The docstring under each field, with its unit, is what `--help-config` shows.

    Invariant: an unknown key is an error (`hone.config` adds the nearest valid name to the message).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
