"""The base of every room's settings: frozen and documented; unknown keys are errors."""

from __future__ import annotations

import warnings
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

# `train.validate` hides a method of BaseModel that pydantic deprecates and Hone never calls
warnings.filterwarnings("ignore", message='Field name "validate" .* shadows an attribute')


class Settings(BaseModel):
    """A group of settings. The docstring under each field, with its unit, is what `--help-config` shows.

    A group whose fields depend on one of them is a union of subclasses, discriminated by that field.

    Invariant: an unknown key is an error (`hone.config` adds the nearest valid name to the message).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Mark(StrEnum):
    """What a setting, or a whole group, means for the run that it belongs to; written into its annotation.

    Example:
        threads: Annotated[int | None, Mark.SAME_RESULTS] = None
    """

    SAME_RESULTS = "same_results"  # says where, how fast or how safely a run computes, but not what
    RUN_SEED = "run_seed"  # a seed that is the run's unless a recipe sets it
    FILE_CONTENT = "file_content"  # may name a file, whose content decides what the run computes
