"""Errors of the train room; every message says what to do."""

from hone.utils.errors import HoneError


class TrainError(HoneError):
    """Training cannot continue."""


class NothingLearnt(TrainError):
    """A training is finished, and no step changed a weight."""


class StaleSample(TrainError):
    """A token was not sampled by the weights of its step."""


class NonFinite(TrainError):
    """A loss or, repeatedly, a gradient is not a finite number."""


class CheckpointError(TrainError):
    """A checkpoint cannot be written or read."""


class StepCancelled(TrainError):
    """A training step was cancelled; its weights are unusable."""


class RankError(TrainError):
    """A rank of the learner has died or does not answer; all ranks are stopped."""
