from pathlib import Path

import pytest

from hone.evaluate.rates import rate_tasks, wilson
from hone.utils.jsonl import append_json
from tests.tasks.test_division import seeded


@pytest.mark.parametrize(
    ("successes", "n", "interval"), [(0, 4, (0.0, 0.4899)), (4, 4, (0.5101, 1.0)), (5, 10, (0.2366, 0.7634))]
)
def test_interval_is_wilsons(successes: int, n: int, interval: tuple[float, float]) -> None:
    assert wilson(successes, n) == pytest.approx(interval, abs=1e-4)


def test_rate_counts_samples_without_faults(tmp_path: Path) -> None:
    rows = [
        ("s-0", 0, True, "resolved"),
        ("s-0", 1, False, "unresolved"),
        ("s-0", 2, False, "sandbox_error"),
    ]
    for task, sample, resolved, status in rows:
        append_json(
            tmp_path / "results.jsonl",
            {"instance_id": task, "sample": sample, "resolved": resolved, "exit_status": status},
        )
    rated, unrated = rate_tasks([seeded(0, "m.py", "f"), seeded(1, "m.py", "g")], tmp_path, "a model")
    assert rated.metadata["rate"] == {
        "policy": "a model",
        "n": 2,
        "resolved": 1,
        "rate": 0.5,
        "low": 0.0945,
        "high": 0.9055,
    }
    assert "rate" not in unrated.metadata
