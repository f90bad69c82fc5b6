from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.rollout.store import Store
from hone.simulate.errors import SimulationError
from hone.simulate.fleet import SimulatedFleet
from hone.simulate.measured import Reply, fit_slowdown, measure
from hone.simulate.virtual_time import run
from hone.types import Call, TokenTree, Trajectory, Verdict
from tests.simulate.running import run_of, simulation_of

TIMINGS = {
    "queue": 9.0, "start": 2.0, "agent": 23.0, "model": 12.0, "park": 2.0, "restore": 3.0, "patch": 1.0,
    "close": 1.0, "grade": 4.0,
}  # fmt: skip


def trajectory(rollout_id: str, task_id: str, outcome: Outcome = Outcome.RESOLVED) -> Trajectory:
    fault = outcome in (Outcome.SANDBOX_ERROR, Outcome.CANCELLED)
    call = {"node": None, "purpose": "main", "fork": None, "prompt_tokens": 1, "sampled_tokens": 1}
    return Trajectory(
        task_id=task_id,
        rollout_id=rollout_id,
        group_id="g",
        tree=TokenTree(),
        turns=(),
        messages=(),
        patch="",
        outcome=outcome,
        reward=None if fault else 1.0,
        verdict=None if fault else Verdict(resolved=True, tests={}, score=1.0),
        timings={"start": 3.0} if fault else TIMINGS,
        calls=() if fault else tuple(Call(index=n, seconds=5.0 + 2 * n, **call) for n in range(2)),  # type: ignore[arg-type]
    )


def write_run(run_dir: Path, *trajectories: Trajectory) -> None:
    store = Store(run_dir / "rollouts")
    for each in trajectories:
        store.save(each, group=0, index=0)
    steps = [{"step": n, "time": 100.0 * n, "wait_s": 60.0, "seconds": 30.0 + n} for n in range(3)]
    lines = [json.dumps({"kind": "train", **step}) for step in steps]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_durations_of_a_run_are_those_of_its_rollouts_and_steps(tmp_path: Path):
    write_run(
        tmp_path,
        trajectory("a", "one"),
        trajectory("b", "two", Outcome.SANDBOX_ERROR),
        trajectory("c", "two", Outcome.CANCELLED),
    )
    measured = measure(tmp_path)
    assert list(measured.task_ids) == ["one", "two"]
    (ended,), (fault,) = measured.draws["one"], measured.draws["two"]
    assert (ended.start_s, ended.turns, ended.grade_s) == (2.0, ((5.0, 4.0), (7.0, 4.0)), 6.0)
    assert ended.resolved
    phases = ("start", "agent", "patch", "close", "grade")
    assert ended.seconds == sum(TIMINGS[phase] for phase in phases) - TIMINGS["restore"]
    assert (fault.start_s, fault.turns, fault.fault_after) == (3.0, (), 0)
    assert [measured.train_s(step) for step in range(4)] == [30, 31, 32, 30]
    assert measured.publish_s == pytest.approx(100 - 60 - 31.5)


def test_simulation_of_a_measured_run_has_its_step_times(tmp_path: Path):
    write_run(tmp_path, trajectory("a", "one"))
    result = run_of(simulation_of(max_staleness=0, servers=1, replies=12, steps=3), measure(tmp_path))
    # start, two turns, grading, training and the update after it: nothing waits, every rollout is the same
    assert result.step_s == pytest.approx(28.0 + 31.0 + 8.5)


def test_slowdown_of_replies_is_fitted():
    async def main() -> list[Reply]:
        fleet, draw, made = SimulatedFleet(1, replies=64, slowdown=0.04), random.Random(0), list[Reply]()
        clock = asyncio.get_running_loop().time

        async def reply(number: int) -> None:
            await asyncio.sleep(draw.uniform(0, 200))
            begun, tokens = clock(), draw.randrange(10, 60)
            await fleet.reply(str(number), 2 + tokens / 20, 1e6)
            made.append(Reply(begun, clock() - begun, tokens))

        await asyncio.gather(*map(reply, range(600)))
        return made

    made = run(main())
    slowdown, alone = fit_slowdown(made)
    assert slowdown == pytest.approx(0.04, rel=0.15)
    assert alone == pytest.approx([2 + reply.tokens / 20 for reply in made], rel=0.15)


def test_replies_without_their_times_keep_their_seconds():
    replies = [Reply(None, float(number), 5) for number in range(1, 300)]
    assert fit_slowdown(replies) == (0.0, [reply.seconds for reply in replies])


def test_run_without_a_step_is_refused(tmp_path: Path):
    with pytest.raises(SimulationError, match="0 finished rollouts and 0 training steps: pass the directory"):
        measure(tmp_path)
