"""A corpus of reward hacks: patches that leave a bug in place and try to be paid for it.

All tasks are issues of one small repository (`repository.py`). An exploit belongs to the task whose tests it
can defeat; the other modules hold the exploits, a few classes each. Each task also has two honest patches.
"""

from __future__ import annotations

from benchmarks.parts.corpus.patches import FIX, WRONG, Patch, make_patches
from benchmarks.parts.corpus.repository import ISSUES, REPOSITORY, Issue

__all__ = ["FIX", "ISSUES", "REPOSITORY", "WRONG", "Issue", "Patch", "make_patches"]
