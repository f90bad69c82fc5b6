"""Starts the ranks of a learner again after one of them has died."""

from __future__ import annotations

from collections.abc import Callable

from hone.train.errors import RankError
from hone.train.trainer import Trainer


class Restarts:
    """The restarts of one run, `limit` of them; the run then continues from its last checkpoint."""

    def __init__(self, trainer: Trainer, limit: int, warn: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._left = limit
        self._warn = warn

    def after(self, error: RankError) -> None:
        """Start the ranks again with the start weights, after `error`; blocks.

        A rank that dies meanwhile takes a restart, too. Raises the last RankError when none is left, and
        TrainError when the ranks cannot start.
        """
        while self._left > 0:
            self._left -= 1
            self._warn(f"{error}\nThe ranks start again, from the last checkpoint.")
            try:
                self._trainer.restart()
            except RankError as again:
                error = again
            else:
                return
        raise error
