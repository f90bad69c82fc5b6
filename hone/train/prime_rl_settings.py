"""Settings of prime-rl's trainer."""

from __future__ import annotations

from pydantic import Field

from hone.settings import Settings


class PrimeRLSettings(Settings):
    """prime-rl's trainer, which is started by hand with the `prime_rl/trainer.toml` of the run directory."""

    data_ranks: int = Field(default=1, ge=1)
    """Number of data-parallel ranks of the trainer: its processes, divided by those that share a sequence."""

    seq_len: int = Field(default=32768, gt=0)
    """Tokens of a packed micro-batch; no branch may be longer."""

    timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit of one training step, and of the trainer's start, in seconds."""
