"""Hone trains software-engineering agents by reinforcement learning."""

__version__ = "0.1.0"
