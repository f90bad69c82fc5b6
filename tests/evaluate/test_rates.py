from pathlib import Path

from hone.evaluate.rates import rate_tasks
from hone.utils.jsonl import append_json
from tests.tasks.test_division import seeded


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
        "low": 0.0126,  # Clopper and Pearson's: 1 - sqrt(0.975)
        "high": 0.9874,
    }
    assert "rate" not in unrated.metadata
