"""Errors of the rollout room."""

from __future__ import annotations

from hone.utils.errors import HoneError


class RolloutError(HoneError):
    """A step cannot be completed; the message says what to do."""


class LedgerError(HoneError):
    """The ledger does not balance, refuses a change, or cannot be opened."""


class StoreError(HoneError):
    """A rollout cannot be written or read; the message says what to do."""
