"""Settings of the evaluate room."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hone.settings import Mark, Settings


class EvaluateSettings(Settings):
    """How a fixed policy is measured."""

    split: Literal["train", "validation", "test", "test_unseen"] = "test"
    """Task set."""

    ids_file: Path | None = None
    """File with the ids of the tasks to evaluate, one per line; `#` starts a comment. Default: all tasks."""

    slice: str = ""
    """Python slice of the remaining tasks, such as `0:5`; empty: all."""

    repo_root: Path | None = None
    """Folder of repositories (git folders or bundles named `owner__name`) to use instead of the tasks'
    images. Default: images."""

    samples: int = Field(default=1, ge=1)
    """Rollouts per task; pass@k is estimated for this number and every smaller power of two."""

    temperatures: tuple[float, ...] = ()
    """Temperatures, each with a separate evaluation; empty: only `sampling.temperature`."""

    group_by: str = "family"
    """Key of the tasks' metadata by which the resolve rate is also reported; a task without it is grouped by
    repository."""

    price_per_million_prompt: Annotated[float, Mark.SAME_RESULTS] = Field(default=0.0, ge=0)
    """Price of a million prompt tokens, in any currency; each call pays its whole prompt."""

    price_per_million_sampled: Annotated[float, Mark.SAME_RESULTS] = Field(default=0.0, ge=0)
    """Price of a million sampled tokens, in the same currency."""

    @field_validator("slice")
    @classmethod
    def _is_a_slice(cls, text: str) -> str:
        parse_slice(text)
        return text

    @field_validator("temperatures")
    @classmethod
    def _each_once(cls, temperatures: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= temperature < math.inf for temperature in temperatures):
            raise ValueError(f"temperatures are {temperatures}: each must be finite and at least 0")
        if len(set(temperatures)) < len(temperatures):
            raise ValueError("a temperature is listed twice: list each once")
        return temperatures

    def cost(self, prompt_tokens: int, sampled_tokens: int) -> float:
        """Return the cost of these tokens."""
        prompt = prompt_tokens * self.price_per_million_prompt
        return (prompt + sampled_tokens * self.price_per_million_sampled) / 1e6


def parse_slice(text: str) -> slice:
    """Return the slice for `start:stop` or `start:stop:step`; "" is everything. Raises ValueError."""
    parts = text.split(":") if text else ["", ""]
    try:
        bounds = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        bounds = []
    if len(bounds) not in (2, 3) or (len(bounds) == 3 and bounds[2] == 0):
        raise ValueError(f"{text!r} is not a slice such as 0:5, :10 or 20:")
    return slice(*bounds)
