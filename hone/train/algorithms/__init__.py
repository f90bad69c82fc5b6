"""Algorithms of reinforcement learning, one per file; `registry` lists them."""

from hone.train.algorithms.advantages import Advantages, compute_advantages
from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, of_each_group

__all__ = ["Advantages", "Algorithm", "Group", "GroupAdvantages", "compute_advantages", "of_each_group"]
