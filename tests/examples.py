"""The number of examples that a property draws in each tier."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return `count`, or a sixth of it in `make fast`."""
    return count // 6 if settings.get_current_profile_name() == "fast" else count
