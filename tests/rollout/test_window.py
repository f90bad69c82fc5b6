from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.rollout.window import Window


def admit_all(window: Window, next_position: int) -> int:
    for position in range(next_position, next_position + window.room):
        window.admit(position)
        next_position = position + 1
    return next_position


def test_on_policy_step_waits_for_all_of_its_groups():
    window = Window(groups_per_step=2, max_staleness=0, steps=2)
    window.open(0)
    assert admit_all(window, 0) == 2
    window.complete(1)
    assert window.take(0) is None
    window.complete(0)
    assert window.take(0) == [0, 1]
    assert window.room == 0  # not before the next weights are in use
    window.open(1)
    assert admit_all(window, 2) == 4


def test_slow_group_is_passed_over_until_its_last_step():
    window = Window(groups_per_step=1, max_staleness=2, steps=9)
    window.open(0)
    assert admit_all(window, 0) == 3
    window.begin(0)
    for step, taken in ((0, 1), (1, 2)):
        window.complete(taken)
        assert window.take(step) == [taken]
        window.open(step + 1)
        assert window.room == 1
        window.admit(step + 3)
        window.complete(step + 3)
    assert window.take(2) is None, "group 0 was begun by version 0, and must train at step 2"
    window.complete(0)
    assert window.take(2) == [0]


def test_group_that_waits_to_begin_does_not_age():
    window = Window(groups_per_step=1, max_staleness=1, steps=9)
    window.open(0)
    admit_all(window, 0)
    for step in range(4):
        window.complete(step + 1)
        assert window.take(step) == [step + 1], "group 0 has no rollout yet"
        window.open(step + 1)
        window.admit(step + 2)
    window.begin(0)
    assert (window.begun(0), window.last_step(0), window.last_step(5)) == (True, 5, 5)
    window.open(5)
    window.begin(0)
    assert window.last_step(0) == 5, "only the first rollout counts"
    assert window.last_step(5) == 6


def test_last_steps_admit_no_group_that_none_would_train():
    window = Window(groups_per_step=2, max_staleness=8, steps=3)
    window.open(0)
    assert window.room == 6


def test_group_that_is_too_old_is_an_error():
    window = Window(groups_per_step=1, max_staleness=1, steps=9)
    window.start(4)
    window.admit(0, version=2)
    with pytest.raises(ValueError, match="should have trained by step 3"):
        window.take(4)


def test_groups_are_admitted_once_and_complete_once_admitted():
    window = Window(groups_per_step=1, max_staleness=0, steps=1)
    window.admit(0)
    with pytest.raises(ValueError, match="admitted already"):
        window.admit(0)
    with pytest.raises(ValueError, match="never admitted"):
        window.complete(1)


@given(
    groups_per_step=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    steps=st.integers(1, 8),
    data=st.data(),
)
def test_any_order_of_completion_trains_each_group_once_within_the_bound(
    groups_per_step: int, max_staleness: int, steps: int, data: st.DataObject
):
    window = Window(groups_per_step=groups_per_step, max_staleness=max_staleness, steps=steps)
    admitted = 0
    begun_at: dict[int, int] = {}
    waiting: list[int] = []
    running: list[int] = []
    trained: list[int] = []
    for step in range(steps):
        window.open(step)
        for _ in range(window.room):
            window.admit(admitted)
            waiting.append(admitted)
            admitted += 1
        assert len(window.positions) <= (max_staleness + 1) * groups_per_step
        # a step may take its batch at once, or while others begin and complete
        while data.draw(st.booleans(), label="more happens") or (batch := window.take(step)) is None:
            if not waiting and not running:
                batch = window.take(step)
                assert batch is not None, "a step waits although every group is complete"
                break
            chosen = data.draw(st.integers(0, len(waiting) + len(running) - 1), label="which group")
            if chosen < len(waiting):
                position = waiting.pop(chosen)
                window.begin(position)
                begun_at[position] = step
                running.append(position)
            else:
                window.complete(running.pop(chosen - len(waiting)))
        assert len(batch) == groups_per_step
        assert all(0 <= step - begun_at[position] <= max_staleness for position in batch)
        trained += batch
    assert sorted(trained) == list(range(steps * groups_per_step))


@given(steps=st.integers(1, 6), max_staleness=st.integers(0, 3), data=st.data())
def test_window_goes_on_from_any_step(steps: int, max_staleness: int, data: st.DataObject):
    """A run that stops before a step and starts again with the groups it had admitted keeps the bound."""
    window = Window(groups_per_step=2, max_staleness=max_staleness, steps=steps)
    versions: dict[int, int] = {}
    used = 0
    for step in range(steps):
        if data.draw(st.booleans(), label=f"stopped before step {step}"):
            open_groups = sorted(window.positions)
            window = Window(groups_per_step=2, max_staleness=max_staleness, steps=steps)
            window.start(step)
            for position in open_groups:
                window.admit(position, versions.get(position))
        window.open(step)
        for _ in range(window.room):
            window.admit(used)
            used += 1
        waiting = list(window.positions)
        data.draw(st.randoms(use_true_random=False)).shuffle(waiting)
        begun = data.draw(st.integers(0, len(waiting)), label="groups begun before the step")
        for position in waiting[len(waiting) - begun :]:
            window.begin(position)
            versions.setdefault(position, step)
        while (batch := window.take(step)) is None:
            position = waiting.pop()
            window.begin(position)
            versions.setdefault(position, step)
            window.complete(position)
        assert all(step - versions[position] <= max_staleness for position in batch)
        # groups that were complete and not taken are complete again after a stop
        for position in set(window.positions) - set(waiting):
            window.complete(position)
