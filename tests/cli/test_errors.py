"""Every error is one sentence that says what to do."""

import errno

import pytest

from hone.cli.errors import explain
from hone.config import ConfigError
from hone.evaluate.errors import EvaluateError
from hone.policy.engine import EngineError
from hone.policy.errors import PolicyError
from hone.rollout.errors import LedgerError, RolloutError, StoreError
from hone.sandbox.contract import ProviderUnavailable, SandboxLost
from hone.tasks.errors import TaskError
from hone.train.errors import CheckpointError, NonFinite, TrainError


@pytest.mark.parametrize(
    "error",
    [
        EvaluateError("why"),
        EngineError("why"),
        PolicyError("why"),
        LedgerError("why"),
        RolloutError("why"),
        StoreError("why"),
        SandboxLost("why"),
        ProviderUnavailable("why", retryable=False),
        TaskError("why"),
        TrainError("why"),
        CheckpointError("why"),
        NonFinite("why"),
    ],
)
def test_expected_errors_keep_their_message_with_exit_code_1(error: Exception):
    failure = explain(error)
    assert (failure.sentence, failure.exit_code) == ("why", 1)


def test_config_error_is_exit_code_2():
    assert explain(ConfigError("why")).exit_code == 2


def test_error_inside_a_task_group_is_reported():
    group = ExceptionGroup("two", [ExceptionGroup("one", [LedgerError("the ledger\nis damaged")])])
    assert explain(group).sentence == "the ledger is damaged"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "runs/x/metrics.jsonl"),
            "the disk is full (runs/x/metrics.jsonl)",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "runs/x"),
            "no permission (runs/x): choose another run_dir",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit (ulimit -n"),
        (OSError(errno.EIO, "Input/output error", "runs/x"), "Input/output error (runs/x)"),
        (MemoryError(), "out of memory: lower engine.max_batch"),
        (TimeoutError(), "run the same command again"),
    ],
)
def test_system_errors_get_advice(error: Exception, said: str):
    failure = explain(error)
    assert said in failure.sentence
    assert failure.exit_code == 1
    assert "unexpected error" not in failure.sentence


def test_unexpected_error_recommends_debug():
    failure = explain(ExceptionGroup("x", [ZeroDivisionError("division by zero")]))
    assert "unexpected error" in failure.sentence
    assert failure.exit_code == 1
    assert "--debug" in failure.sentence
