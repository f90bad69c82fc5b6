"""Errors of simulations."""

from hone.utils.errors import HoneError


class SimulationError(HoneError):
    """A run cannot be simulated, or a simulated run broke a rule of training."""


class DeadlockError(SimulationError):
    """Every task of a simulation waits for another one."""
