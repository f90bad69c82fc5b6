"""What the rollout room raises to its callers."""


class RolloutError(Exception):
    """A step cannot be completed; the message says what to do."""


class LedgerError(Exception):
    """The ledger does not balance, was told something impossible, or cannot be opened."""


class StoreError(Exception):
    """A rollout cannot be written or read; the message says what to do."""
