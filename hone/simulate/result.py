"""What a simulated run did, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FULL = 0.9  # share in use from which on a part of the run counts as its bottleneck
UPDATING = 0.3  # share of the time from which on weight updates do


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measured steps of a simulated run; shares are in [0, 1], times virtual."""

    max_staleness: int
    servers: int
    sandboxes: int  # that may be leased at a time
    steps: int
    groups_per_hour: float
    rollouts_per_hour: float
    step_s: float
    wait_s: float  # of the trainer for its batch, mean per step
    update_s: float  # of the weights, mean per step, with the wait for replies under way
    busy: Mapping[str, float]  # engine: servers with a reply; sandbox: that do something; trainer
    replies_share: float  # of the places in the servers' batches
    leased_share: float  # of the sandboxes
    sandboxes_used: int  # at most at a time
    staleness: Mapping[int, int]  # steps -> trained rollouts
    faults: int
    deaths: int  # of servers
    set_aside: Mapping[str, str]  # task -> reason, the last one
    set_asides: int  # times that a task was set aside
    limit: str  # what bounds the throughput, in a word
    bottleneck: str  # the same in a sentence, with what to do
    virtual_s: float
    cpu_s: float  # of this process, that the simulation took

    @property
    def largest_staleness(self) -> int:
        return max(self.staleness, default=0)


def bottleneck(
    *, trainer: float, replies: float, leased: float, update: float, wait_s: float, max_staleness: int
) -> tuple[str, str]:
    """Return what bounds the throughput, in a word and in a sentence with what to do."""
    share, name, advice = max(
        (trainer, "trainer", "give it more GPUs"),
        (replies, "engine", "add servers"),
        (leased, "sandboxes", "raise rollout.concurrent_episodes"),
    )
    if share >= FULL:
        return name, f"{name}, {100 * share:.0f} % in use: {advice}"
    if update >= UPDATING:
        return "updates", f"weight updates, {100 * update:.0f} % of the time: make them faster"
    raise_it = f"raise rollout.max_staleness ({max_staleness}) or groups_per_step"
    return (
        "stragglers",
        f"the last rollouts of a batch, for which the trainer waits {wait_s:.0f} s a step: {raise_it}",
    )
