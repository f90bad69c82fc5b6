"""The values that verl and Hone exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hone.integrations.verl.rows import (
    completion_of,
    dataset_rows,
    loop_outputs,
    sampling_of,
    sampling_params,
)
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.policy.engine import EngineError, Finish, Sampling
from hone.types import TokenTree
from tests.grading.example import make_task
from tests.integrations.rollouts.examples import forked_tree, rendered, trajectory

SAMPLING = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=12, stop_token_ids=(2, 3))


@dataclass
class Output:
    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict[str, Any])


def test_row_names_its_task_and_shows_no_check() -> None:
    task = make_task()

    (row,) = dataset_rows([task], "train")

    assert row["extra_info"] == {"index": 0, "task_id": "example", "split": "train"}
    assert row["prompt"] == [{"role": "user", "content": task.problem}]
    assert row["agent_name"] == "hone"
    assert task.checks.fail_to_pass[0] not in repr(row)


def test_forked_rollout_is_one_output_per_branch() -> None:
    first, last = loop_outputs(trajectory(forked_tree()), masked=False, version=9)

    assert (first["prompt_ids"], first["response_ids"]) == ([1, 2], [3, 4, 5, 6])
    assert first["response_mask"] == [1, 1, 0, 1]
    assert first["response_logprobs"] == [-4 / 64, -5 / 64, 0.0, -7 / 64]
    assert last["response_ids"] == [9, 10]
    assert {each["reward_score"] for each in (first, last)} == {1.0}
    assert [each["extra_fields"]["min_global_steps"] for each in (first, last)] == [5, 7]
    assert [each["extra_fields"]["max_global_steps"] for each in (first, last)] == [6, 7]
    assert last["extra_fields"]["reward_extra_info"] == {"acc": 0.0}  # it was never graded


@pytest.mark.parametrize("outcome", [o for o in Outcome if OUTCOME_RULES[o].fault is Fault.INFRASTRUCTURE])
def test_infrastructure_fault_has_no_row_in_verls_baseline(outcome: Outcome) -> None:
    assert loop_outputs(trajectory(forked_tree(), outcome), masked=False, version=0) == []


def test_rollout_without_a_token_keeps_its_reward_in_the_baseline() -> None:
    tree = TokenTree([rendered(None, [1, 2])])

    (row,) = loop_outputs(trajectory(tree, Outcome.CONTEXT_LIMIT), masked=False, version=4)

    assert row["response_mask"] == [0]
    assert row["reward_score"] == -1.0
    assert row["extra_fields"]["min_global_steps"] == row["extra_fields"]["max_global_steps"] == 4


def test_masked_limit_keeps_its_reward_and_trains_no_token() -> None:
    rows = loop_outputs(trajectory(forked_tree(), Outcome.TURN_LIMIT), masked=True, version=0)

    assert [sum(row["response_mask"]) for row in rows] == [0, 0]
    assert rows[-1]["reward_score"] == -1.0


def test_reply_carries_the_oldest_and_the_newest_version() -> None:
    output = Output([7, 8, 2], [-0.5, -0.25, -1], extra_fields={"min_global_steps": 3, "max_global_steps": 4})

    completion = completion_of(output, SAMPLING)

    assert completion.version.tolist() == [3, 3, 4]
    assert completion.logprobs.tolist() == [-0.5, -0.25, -1]
    assert completion.finish is Finish.STOP


@pytest.mark.parametrize(
    ("ids", "reason", "finish"),
    [
        ([7, 3], "completed", Finish.STOP),
        ([7, 8], "length", Finish.LENGTH),
        ([7, 8], None, Finish.LENGTH),
        ([7, 8], "aborted", Finish.ABORT),
        ([], "abort", Finish.ABORT),
    ],
)
def test_end_of_a_reply_is_told_from_its_last_token(
    ids: list[int], reason: str | None, finish: Finish
) -> None:
    assert completion_of(Output(ids, [0.0] * len(ids), reason), SAMPLING).finish is finish


def test_reply_without_logprobs_is_refused_with_the_setting() -> None:
    with pytest.raises(EngineError, match=r"actor_rollout_ref\.rollout\.calculate_log_probs = true"):
        completion_of(Output([7], None), SAMPLING)


def test_request_has_the_names_of_verls_engines() -> None:
    assert sampling_params(SAMPLING) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "max_tokens": 12,
        "stop_token_ids": [2, 3],
    }


@pytest.mark.parametrize(("theirs", "ours"), [(-1, 0), (0, 0), (5, 5)])
def test_top_k_that_is_off_is_zero(theirs: int, ours: int) -> None:
    sampling = sampling_of({"temperature": 1.0, "top_p": 1, "top_k": theirs}, 64)

    assert (sampling.top_k, sampling.max_tokens) == (ours, 64)
    assert sampling_params(Sampling(top_k=sampling.top_k))["top_k"] == (ours or -1)
