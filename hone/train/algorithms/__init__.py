"""Algorithms: each turns the rewards of one group into advantages, and knows nothing else."""

from hone.train.algorithms.advantages import Advantages, compute_advantages

__all__ = ["Advantages", "compute_advantages"]
