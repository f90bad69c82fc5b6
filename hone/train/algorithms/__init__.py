"""Algorithms of reinforcement learning, one per file; `registry` lists them."""

from hone.train.algorithms.advantages import Advantages, compute_advantages
from hone.train.algorithms.contract import Algorithm, Critic, Group, GroupAdvantages, of_each_group
from hone.train.algorithms.surrogates import CLIPPED, TRUNCATED, Surrogate

__all__ = [
    "CLIPPED",
    "TRUNCATED",
    "Advantages",
    "Algorithm",
    "Critic",
    "Group",
    "GroupAdvantages",
    "Surrogate",
    "compute_advantages",
    "of_each_group",
]
