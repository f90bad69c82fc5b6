"""Validation in the loop, with a scripted evaluation: when it runs, what it keeps, and how it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.train.loop import checkpoints, train
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import CheckpointSettings, TrainSettings, ValidateSettings
from hone.train.validate import Validator
from tests.train.toy_run import Crash, ToyRun, settings_of

pytestmark = pytest.mark.model


def settings(steps: int, *, every: int, keep_best: bool = True) -> TrainSettings:
    return settings_of(steps).model_copy(
        update={
            "checkpoint": CheckpointSettings(every=4, keep=1),
            "validate": ValidateSettings(every=every, keep_best=keep_best),
        }
    )


def live(
    run_dir: Path,
    chosen: TrainSettings,
    rates: Sequence[float],
    crash: Callable[[str, int], None] = lambda *_: None,
) -> list[int]:
    """Train; return the validated versions. `crash` sees ("validating", v) and the moments of `ToyRun`."""
    run = ToyRun(run_dir, chosen, crash)
    validated: list[int] = []

    async def evaluate(version: int) -> Mapping[str, float]:
        crash("validating", version)
        assert run.version == version
        validated.append(version)
        return {"resolve_rate": rates[version], "low": 0.0, "high": 1.0, "n": 8}

    validator = Validator(
        chosen.validate, steps=chosen.steps, run_dir=run_dir, metrics=run.metrics, evaluate=evaluate
    )
    run.parts = replace(run.parts, validator=validator)
    try:
        asyncio.run(train(run.parts))
    finally:
        run.close()
    return validated


def stored(run_dir: Path) -> tuple[list[str], str]:
    folder = checkpoints(run_dir)
    return sorted(p.name for p in folder.glob("step-*")), (folder / "best").readlink().name


def test_best_checkpoint_is_kept_and_linked(tmp_path: Path) -> None:
    rates = [0.9, 0, 0.5, 0, 0.7, 0, 0.7, 0.6]
    assert live(tmp_path, settings(7, every=2), rates) == [0, 2, 4, 6, 7]
    records = read_metrics(tmp_path, "validation")
    assert [(r["step"], r["resolve_rate"], r["n"]) for r in records] == [
        (version, rates[version], 8) for version in (0, 2, 4, 6, 7)
    ]
    assert all(record["seconds"] >= 0 for record in records)
    # version 4 is the first of the best trained ones; its weights are those after step 3
    assert stored(tmp_path) == (["step-000003", "step-000006"], "step-000003")
    assert [r["step"] for r in read_metrics(tmp_path)] == list(range(7))


def test_resumed_run_validates_each_version_once(tmp_path: Path) -> None:
    rates = [0, 0, 0.5, 0, 0.25]

    def crash_at(where: str, at: int) -> Callable[[str, int], None]:
        def crash(place: str, index: int) -> None:
            if (place, index) == (where, at):
                raise Crash

        return crash

    chosen = settings(4, every=2)
    with pytest.raises(Crash):
        live(tmp_path, chosen, rates, crash_at("validating", 0))
    with pytest.raises(Crash):
        live(tmp_path, chosen, rates, crash_at("collected", 0))
    assert [r["step"] for r in read_metrics(tmp_path, "validation")] == [0]
    with pytest.raises(Crash):
        live(tmp_path, chosen, rates, crash_at("validating", 2))
    assert live(tmp_path, chosen, rates, crash_at("none", 0)) == [2, 4]
    assert stored(tmp_path) == (["step-000001", "step-000003"], "step-000001")
    assert live(tmp_path, chosen, rates) == []


def test_result_of_lost_weights_does_not_count(tmp_path: Path) -> None:
    chosen = settings(4, every=2, keep_best=False)  # step 1 ends without a checkpoint

    def crash(place: str, index: int) -> None:
        if (place, index) == ("collected", 2):
            raise Crash

    with pytest.raises(Crash):
        live(tmp_path, chosen, [0] * 5, crash)
    assert [r["step"] for r in read_metrics(tmp_path, "validation")] == [0, 2]
    assert live(tmp_path, chosen, [0] * 5) == [2, 4]
    assert not (checkpoints(tmp_path) / "best").is_symlink()


def test_version_whose_validation_measured_nothing_is_never_the_best(tmp_path: Path) -> None:
    results = {1: {"resolve_rate": 0.0, "n": 0}, 2: {"resolve_rate": 0.0, "n": 8}}

    async def evaluate(version: int) -> Mapping[str, float]:
        return results[version]

    for step in (0, 1):
        (tmp_path / f"step-{step:06d}").mkdir()
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        chosen = ValidateSettings(every=1)
        validator = Validator(chosen, steps=2, run_dir=tmp_path, metrics=metrics, evaluate=evaluate)
        asyncio.run(validator.validate(1))
        assert validator.best_step(tmp_path) is None
        asyncio.run(validator.validate(2))
        assert validator.best_step(tmp_path) == 1


@given(every=st.integers(0, 7), steps=st.integers(1, 20))
def test_start_and_end_are_always_validated(every: int, steps: int) -> None:
    chosen = ValidateSettings(every=every)
    due = [version for version in range(steps + 1) if chosen.is_due(version, steps)]
    assert chosen.count(steps) == len(due)
    assert due == ([] if every == 0 else sorted({*range(0, steps + 1, every), steps}))
