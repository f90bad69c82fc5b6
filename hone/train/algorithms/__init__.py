"""Algorithms that turn the rewards of one group into advantages."""

from hone.train.algorithms.advantages import Advantages, compute_advantages

__all__ = ["Advantages", "compute_advantages"]
