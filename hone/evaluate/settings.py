"""Settings of the evaluate room."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hone.settings import Settings


class EvaluateSettings(Settings):
    """How a fixed policy is measured."""

    split: Literal["train", "validation", "test", "test_unseen"] = "test"
    """Set of tasks."""

    samples: int = Field(default=1, ge=1)
    """Rollouts per task; pass@k is estimated for every power of two up to it, and for itself."""

    group_by: str = "family"
    """Key of the tasks' metadata by which the resolve rate is also broken down."""
