"""One plan for all ranks: which group of ranks computes which pass, round by round.

Every pass gathers weights from all ranks, so ranks go through their passes together, round by round, and a
round takes as long as its longest pass.
"""

from __future__ import annotations

from collections.abc import Sequence


def rounds(costs: Sequence[float], groups: int) -> list[list[int | None]]:
    """Return, per round, the pass of each group of ranks; None: nothing is left for that group.

    Passes of similar cost share a round, which gives the least possible sum of the rounds' longest passes.
    Deterministic. Example: costs 5, 1, 4 and 2 groups give [[0, 2], [1, None]].
    """
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    filled: list[int | None] = [*order, *[None] * (-len(order) % groups)]
    return [filled[start : start + groups] for start in range(0, len(filled), groups)]
