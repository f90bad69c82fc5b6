"""The benchmark for GPUs runs whole on a CPU, at toy size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.full]


def test_gpu_benchmark_runs_at_toy_size() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--toy"],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parents[1],
    )
    metrics = json.loads(ran.stdout.splitlines()[-1])["metrics"]
    assert [(case["context"], case["mode"]) for case in metrics["cases"]] == [
        *((128, "full"), (128, "lora"), (512, "full"), (512, "lora"))
    ]
    assert all(case["tokens_per_s"] > 0 for case in metrics["cases"])
    assert metrics["trees"][0]["tree_over_rows"] > 0
