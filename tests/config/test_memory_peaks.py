"""The memory plan against the measured peak of a training step."""

import pytest

from benchmarks.memory import LOGIT_TOKENS, TOLERANCE, run_case


@pytest.mark.full
@pytest.mark.parametrize("checkpointing", [False, True])
def test_planned_peak_is_close_to_the_measured_one(checkpointing: bool):
    case = {"size": "5M", "dtype": "float32", "lora": False, "logit_tokens": LOGIT_TOKENS}
    result = run_case({**case, "checkpointing": checkpointing})
    assert abs(result["ratio"] - 1) <= TOLERANCE
