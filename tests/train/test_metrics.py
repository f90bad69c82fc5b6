from __future__ import annotations

from pathlib import Path

from hone.train.metrics import MetricsWriter, read_metrics


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
