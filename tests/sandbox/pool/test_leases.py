"""The states of a lease, in any order of events: each ends once, and never comes back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hone.sandbox.contract import LeaseLost
from hone.sandbox.pool.leases import ENDS, STEP_S, Lease, LeaseClock, Leases, State
from hone.sandbox.remote.wire import Beat, SpecBody
from tests.examples import examples

NAMES = st.sampled_from(["a", "b", "c", "d"])
TTL_S = 10.0


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.given = 0
        self.leases = Leases(self.next_generation)
        self.ends: Counter[str] = Counter()  # how often each id ended
        self.renewed: dict[str, float] = {}  # id -> lease time of the activation or latest renewal

    def next_generation(self) -> int:
        self.given += 1
        return self.given

    def living(self, *states: State) -> list[Lease]:
        return [lease for lease in self.leases if lease.state in states]

    @rule(name=NAMES, owner=st.sampled_from(["x", "y"]))
    def admit(self, name: str, owner: str) -> None:
        if self.leases.get(name) is not None:
            return
        lease = Lease(id=name, owner=owner, spec=SpecBody(), ttl_s=TTL_S, created=0.0)
        if self.ends[name]:
            with pytest.raises(LeaseLost):
                self.leases.admit(lease)
        else:
            self.leases.admit(lease)

    @precondition(lambda self: self.living(State.QUEUED))
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.living(State.QUEUED)))
        before = lease.generation
        assert self.leases.place(lease, "http://node") > before

    @precondition(lambda self: self.living(State.STARTING))
    @rule(data=st.data(), works=st.booleans())
    def finish_start(self, data: st.DataObject, works: bool) -> None:
        lease = data.draw(st.sampled_from(self.living(State.STARTING)))
        if works:
            self.leases.activate(lease, self.now)
            self.renewed[lease.id] = self.now
        else:
            self.leases.put_back(lease)

    @rule(name=NAMES, generation=st.integers(0, 12))
    def renew(self, name: str, generation: int) -> None:
        lease = self.leases.get(name)
        valid = lease is not None and lease.state is State.ACTIVE and lease.generation == generation
        lost = self.leases.renew([Beat(lease_id=name, generation=generation)], self.now)
        assert lost == ([] if valid else [name])
        if valid:
            self.renewed[name] = self.now

    @precondition(lambda self: len(self.leases) > 0)
    @rule(data=st.data(), how=st.sampled_from(sorted(ENDS)))
    def end(self, data: st.DataObject, how: State) -> None:
        lease = data.draw(st.sampled_from(list(self.leases)))
        first = lease.state is not State.CLOSING
        assert self.leases.end(lease, how) == first
        self.ends[lease.id] += first
        assert self.leases.renew([Beat(lease_id=lease.id, generation=lease.generation)], self.now)

    @precondition(lambda self: self.living(State.CLOSING))
    @rule(data=st.data())
    def finish_end(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.living(State.CLOSING)))
        self.leases.finish_end(lease, self.now)
        assert self.leases.ended_as(lease.id) is lease.end

    @rule(seconds=st.floats(0.1, 12.0))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = self.leases.due(self.now)
        silent = {
            lease.id for lease in self.living(State.ACTIVE) if self.renewed[lease.id] + TTL_S <= self.now
        }
        assert {lease.id for lease in due} == silent
        assert len(due) == len(silent)
        for lease in due:
            assert self.leases.end(lease, State.EXPIRED)
            self.ends[lease.id] += 1

    @invariant()
    def none_ends_twice(self) -> None:
        assert all(number <= 1 for number in self.ends.values())

    @invariant()
    def generations_differ(self) -> None:
        placed = [lease.generation for lease in self.leases if lease.generation]
        assert len(placed) == len(set(placed))


LeaseMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase


def test_tombstones_are_forgotten_oldest_first() -> None:
    leases = Leases(iter(range(100)).__next__)
    for number in range(5):
        leases.set_tombstone(f"l{number}", State.CLOSED, float(number))
    assert leases.take_old_tombstones(2.0) == ["l0", "l1"]
    assert leases.ended_as("l1") is None
    assert leases.ended_as("l2") is State.CLOSED


def test_lease_clock_skips_time_in_which_the_pool_was_stopped() -> None:
    now = 1000.0
    clock = LeaseClock(lambda: now)
    now += 1.5
    assert clock.now() == 1.5
    now += 3600.0
    assert clock.now() == 1.5 + STEP_S
    now -= 50.0  # a clock that is not monotonic after all
    assert clock.now() == 1.5 + STEP_S
