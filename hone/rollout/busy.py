"""How busy the engine, the sandboxes and the trainer of a run are, which shows what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

from hone.utils.busy import BusyMeter


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyShares:
    """Meters of what a run may wait for; see `BusyMeter`."""

    engine: BusyMeter = field(default_factory=BusyMeter)  # servers, as many as replies are under way
    sandbox: BusyMeter = field(default_factory=BusyMeter)  # sandboxes that start, run a command or grade
    trainer: BusyMeter = field(default_factory=BusyMeter)  # training steps
    parked: BusyMeter = field(default_factory=BusyMeter)  # rollouts whose sandbox is parked

    def shares(self) -> dict[str, float]:
        """Return busy/engine, busy/sandbox, busy/trainer and parked since the last call, each in [0, 1]."""
        return {
            "busy/engine": self.engine.share(),
            "busy/sandbox": self.sandbox.share(),
            "busy/trainer": self.trainer.share(),
            "parked": self.parked.share(),
        }
