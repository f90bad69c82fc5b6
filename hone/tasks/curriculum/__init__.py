"""The quickstart's tasks: small Python repositories with one seeded bug each, generated from a seed.

Everything an agent reads in them is short and regular, so that a model of a million parameters can learn
on it. Flow: a family (arithmetic, flow, objects, unseen) draws a `Bug`; `layout` places it in a repository;
`build` makes the `Task` and proves its edits; `sets` fills them.
"""

from __future__ import annotations

from hone.tasks.curriculum.sets import TRAINED_FAMILIES, UNSEEN_FAMILIES, generate

__all__ = ["TRAINED_FAMILIES", "UNSEEN_FAMILIES", "generate"]
