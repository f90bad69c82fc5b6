from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hone.outcomes import Outcome
from hone.train.loop import describe, to_samples
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import TrainSettings
from tests.train.trajectories import trajectory, with_turns


def test_last_record_of_a_step_counts_and_is_readable_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(0, {"loss": 1.0, "odd": float("nan")})
        assert read_metrics(tmp_path)[0]["loss"] == 1.0
        assert read_metrics(tmp_path)[0]["odd"] is None
        writer.write(1, {"loss": 0.5})
        writer.write(0, {"loss": 2.0})
    with MetricsWriter(tmp_path, kind="sft", tensorboard=False) as writer:
        writer.write(0, {"loss": 9.0})
    assert [(r["step"], r["loss"]) for r in read_metrics(tmp_path)] == [(0, 2.0), (1, 0.5)]
    assert [r["loss"] for r in read_metrics(tmp_path, "sft")] == [9.0]
    assert read_metrics(tmp_path / "nowhere") == []


def test_only_a_partial_last_line_is_dropped(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(0, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert [r["loss"] for r in read_metrics(tmp_path)] == [1.0]
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(1, {"loss": 0.5})
    assert [r["loss"] for r in read_metrics(tmp_path)] == [1.0, 0.5]


def test_tensorboard_shows_every_step_of_a_series(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, kind="sft") as writer:
        for step in range(3):
            writer.write(step, {"loss": 1.0})
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("sft/loss")] == [0, 1, 2]


def test_batch_metrics_are_means_over_the_rollouts_in_the_baseline() -> None:
    batch = [
        with_turns(trajectory("a"), [1, None, None]),
        with_turns(trajectory("b", outcome=Outcome.UNRESOLVED), [1]),
        with_turns(trajectory("c", outcome=Outcome.SANDBOX_ERROR), [1]),
    ]
    metrics = describe(batch, *to_samples(batch, TrainSettings(), lambda _: False))
    assert (metrics["rollouts"], metrics["excluded"]) == (3, 1)
    assert (metrics["turns"], metrics["reward"]) == (2, 0)
