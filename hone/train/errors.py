"""What the train room raises to its callers; every message says what to do."""


class TrainError(Exception):
    """Training cannot go on."""


class StaleSample(TrainError):
    """A token was sampled by weights older than the run allows."""


class NonFinite(TrainError):
    """A loss or, repeatedly, a gradient is not a finite number."""


class CheckpointError(TrainError):
    """A checkpoint cannot be written or read."""


class StepCancelled(TrainError):
    """A training step was told to stop; its weights are of no use."""
