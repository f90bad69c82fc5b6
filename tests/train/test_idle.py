"""A run that trains nothing warns, stops and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.rollout.ledger import Ledger
from hone.train.errors import TrainError
from hone.train.idle import idle_reason, require_trained
from hone.train.loop import describe, to_samples, train
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import TrainSettings
from hone.types import TokenTree, Trajectory
from tests.train.toy_run import Crash, ToyRun, settings_of
from tests.train.trajectories import rendered, trajectory

NO_TOKENS = TokenTree([rendered(None, [1])])


def batch(outcome: Outcome, groups: int = 2, **more: object) -> list[Trajectory]:
    return [
        trajectory(f"r{g}{i}", group_id=f"g{g}", outcome=outcome, **more)  # type: ignore[arg-type]
        for g in range(groups)
        for i in range(4)
    ]


def reason(trajectories: Sequence[Trajectory], masked: frozenset[Outcome] = frozenset()) -> str:
    made = to_samples(trajectories, TrainSettings(), lambda t: t.outcome in masked)
    return idle_reason(describe(trajectories, *made) | {"optimizer_steps": 0})


def test_reason_of_an_idle_step_has_numbers_and_advice() -> None:
    assert reason(batch(Outcome.UNRESOLVED)) == (
        "the rewards were equal within each of the 2 groups (0 of 8 rollouts resolved, mean reward -1.00; "
        "8 of 8 ended with unresolved): choose easier tasks or a stronger model, or raise rollout.group_size"
    )
    assert reason(batch(Outcome.CONTEXT_LIMIT, tree=NO_TOKENS)) == (
        "none of the 8 rollouts sampled a token (8 of 8 ended with context_limit): raise "
        "engine.context_tokens"
    )
    assert reason(batch(Outcome.TURN_LIMIT), frozenset({Outcome.TURN_LIMIT})) == (
        "all 8 rollouts were masked (8 of 8 ended with turn_limit): raise agent.turn_limit, or remove the "
        "outcome from rollout.masked"
    )
    assert reason(batch(Outcome.CONTEXT_LIMIT)).endswith("raise engine.context_tokens")
    assert reason(batch(Outcome.SANDBOX_ERROR)) == (
        "infrastructure faults ended all 8 rollouts: run `hone doctor`"
    )
    alone = [trajectory("a", group_id="g0"), trajectory("b", group_id="g1")]
    assert reason(alone) == "a group of one rollout has no baseline: raise rollout.group_size to 2 or more"
    mixed = [trajectory("a", tree=NO_TOKENS), *batch(Outcome.TIME_LIMIT, groups=1)]
    mixed = [replace(t, group_id="g") for t in mixed]
    assert reason(mixed, frozenset({Outcome.TIME_LIMIT})).startswith("none of the 5 rollouts sampled a token")
    partly = [trajectory("x", outcome=Outcome.TURN_LIMIT, reward=0.5), *batch(Outcome.UNRESOLVED, groups=1)]
    partly = [replace(t, group_id="g") for t in partly]
    assert "choose easier tasks" not in reason(partly, frozenset({Outcome.TURN_LIMIT}))


@pytest.mark.model
def test_idle_run_warns_once_and_stops_also_after_a_resume(tmp_path: Path) -> None:
    idle = {0, 2, 3}
    warnings: list[str] = []

    def live(crash_after: int | None = None) -> None:
        def crash(where: str, step: int) -> None:
            if where == "ended" and step == crash_after:
                raise Crash

        settings = settings_of(5).model_copy(update={"max_idle_steps": 2})
        run = ToyRun(tmp_path, settings, crash)

        async def collect(step: int) -> Sequence[Trajectory]:
            made = await run.collect(step)
            return [t if t.reward is None or step not in idle else replace(t, reward=-1.0) for t in made]

        run.parts = replace(run.parts, collect=collect, warn=warnings.append)
        try:
            asyncio.run(train(run.parts))
        finally:
            run.close()

    with pytest.raises(Crash):
        live(crash_after=2)
    with pytest.raises(TrainError, match=r"2 steps in a row \(train.max_idle_steps is 2\): the rewards were"):
        live()
    live()  # the same command again continues after the idle steps
    assert [record["idle_steps"] for record in read_metrics(tmp_path)] == [1, 0, 1, 2, 0]
    assert [warning.split(",")[0] for warning in warnings] == ["step 0 trained nothing"]
    with Ledger.read(tmp_path) as ledger:
        assert ledger.balance().in_flight == 0


def step_metrics(optimizer_steps: int) -> dict[str, float]:
    rates = {"reward": -1.0, "resolve_rate": 0.0, "groups": 2, "zero_variance_groups": 2}
    counts = {"rollouts": 4, "samples": 4, "masked": 0, "excluded": 0, "outcome/unresolved": 4}
    return {"optimizer_steps": optimizer_steps, **rates, **counts}


def test_run_without_a_trained_step_fails_and_others_count_their_idle_steps(tmp_path: Path) -> None:
    def written(*optimizer_steps: int) -> Path:
        run = tmp_path / "-".join(map(str, optimizer_steps))
        with MetricsWriter(run, tensorboard=False) as metrics:
            for step, made in enumerate(optimizer_steps):
                metrics.write(step, step_metrics(made))
        return run

    assert require_trained(written(1, 2)) is None
    said = require_trained(written(1, 0, 2, 0))
    assert said is not None
    assert said.startswith("2 of 4; in the last of them, the rewards were equal within each of the 2 groups")
    with pytest.raises(TrainError, match=r"nothing was learnt: none of the 2 steps in .* changed a weight"):
        require_trained(written(0, 0))
