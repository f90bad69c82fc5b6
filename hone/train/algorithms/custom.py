"""An algorithm or a reward of yours, by the name of its Python object: MODULE:ATTRIBUTE."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from pydantic import field_validator

from hone.train.algorithms.contract import ENTRY_POINT, Algorithm, RewardSettings
from hone.train.errors import TrainError


class CustomSettings(RewardSettings):
    """An algorithm of yours."""

    name: Literal["custom"] = "custom"

    entry_point: str
    """MODULE:ATTRIBUTE of a `hone.train.algorithms.Algorithm`; the module is installed or on PYTHONPATH."""

    @field_validator("entry_point")
    @classmethod
    def _names_an_object(cls, entry_point: str) -> str:
        if not ENTRY_POINT.fullmatch(entry_point):
            raise ValueError(f"entry_point is {entry_point!r}: set MODULE:ATTRIBUTE")
        return entry_point

    @property
    def algorithm(self) -> Algorithm:
        found = load(self.entry_point)
        if not isinstance(found, Algorithm):
            raise TrainError(
                f"train.algorithm.entry_point = {self.entry_point!r} is a {type(found).__name__}: name a "
                "hone.train.algorithms.Algorithm"
            )
        return found

    @property
    def named(self) -> str:
        return f"{self.entry_point} on the {self.reward} reward"


def load(name: str) -> Any:
    """Return the object MODULE:ATTRIBUTE. Raises TrainError if there is none."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TrainError(
            f"{name} cannot be loaded ({error}): install the module, or put its folder on PYTHONPATH"
        ) from error
