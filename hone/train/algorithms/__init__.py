"""Algorithms: each turns the rewards of one group into advantages, and knows nothing else."""

from hone.train.algorithms.credit import Credit, assign_credit

__all__ = ["Credit", "assign_credit"]
