"""The quickstart's tasks: small Python repositories with one seeded bug each, generated from a seed.

Everything that an agent reads in them is short and regular, so that a model of a million parameters can
learn. A family (arithmetic, flow, objects, unseen) draws a `Bug`; `build` places it in a repository and makes
the `Task`; `sets` fills the task sets.
"""

from __future__ import annotations

from hone.tasks.curriculum.sets import TRAINED_FAMILIES, UNSEEN_FAMILIES, generate

__all__ = ["TRAINED_FAMILIES", "UNSEEN_FAMILIES", "generate"]
