"""slime's samples from trajectories, and what its hooks compute from them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.integrations.slime.samples import (
    advantages,
    completion_of,
    dropped_reason,
    fill_samples,
    metrics,
    payload,
    reset,
)
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.policy.engine import ContextOverflow, Finish, Sampling
from hone.train.algorithms import compute_advantages
from hone.train.algorithms.dr_grpo import DrGrpoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.rloo import RlooSettings
from hone.types import TokenTree
from tests.integrations.rollouts.examples import forked_tree, rendered, sampled, trajectory, trees
from tests.integrations.slime.stand_in import Sample

SAMPLING = Sampling(temperature=0.5, max_tokens=12, stop_token_ids=(2,))


def pending(index: int = 0, group: int = 0) -> Sample:
    return Sample(
        group_index=group, index=index, prompt="Fix it.", label="t", metadata={"hone": {"task_id": "t"}}
    )


def test_forked_rollout_is_one_sample_per_branch() -> None:
    first, last = fill_samples(pending(7, 3), trajectory(forked_tree()), masked=False)

    assert first.tokens == [1, 2, 3, 4, 5, 6]
    assert (first.response_length, first.loss_mask) == (4, [1, 1, 0, 1])
    assert first.rollout_log_probs == [-4 / 64, -5 / 64, 0.0, -7 / 64]
    assert last.tokens == [1, 2, 3, 4, 7, 8, 9, 10]
    assert (last.response_length, last.loss_mask) == (2, [1, 1])
    assert [each.weight_versions for each in (first, last)] == [["5", "6"], ["7"]]
    for each in (first, last):
        assert (each.rollout_id, each.index, each.group_index, each.reward) == (7, 7, 3, 1.0)
        assert each.status is Sample.Status.COMPLETED
    assert first.metadata is not last.metadata


@given(tree=trees())
def test_lengths_are_those_that_slime_asserts(tree: TokenTree) -> None:
    for sample in fill_samples(pending(), trajectory(tree), masked=False):
        assert sample.loss_mask is not None
        assert sample.rollout_log_probs is not None
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
        assert len(sample.tokens) > sample.response_length
        assert not any(p for p, m in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if not m)


@pytest.mark.parametrize("outcome", [o for o in Outcome if OUTCOME_RULES[o].fault is Fault.INFRASTRUCTURE])
def test_fault_is_aborted_and_has_no_reward(outcome: Outcome) -> None:
    (sample,) = fill_samples(pending(), trajectory(forked_tree(), outcome), masked=False)

    assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.ABORTED, None, True)
    assert sample.loss_mask == [0]


@pytest.mark.parametrize("masked", [False, True])
def test_limit_is_truncated_and_may_be_left_out_of_the_loss(masked: bool) -> None:
    tree = TokenTree([rendered(None, [1]), sampled(0, [2])])

    (sample,) = fill_samples(pending(), trajectory(tree, Outcome.TURN_LIMIT), masked=masked)

    assert (sample.status, sample.reward) == (Sample.Status.TRUNCATED, -1.0)
    assert sample.remove_sample is masked


def test_requeued_rollout_starts_from_the_beginning() -> None:
    (sample, _) = fill_samples(pending(7, 3), trajectory(forked_tree()), masked=False)

    assert reset(sample) == pending(7, 3)


def rewarded(*rewards: float | None, group: int = 0, first: int = 0, forks: int = 1) -> list[Sample]:
    """A group with a rollout for each reward, in `forks` samples each."""
    samples = list[Sample]()
    for offset, value in enumerate(rewards):
        for _ in range(forks):
            sample = pending(first + offset, group)
            sample.rollout_id, sample.reward = first + offset, value
            samples.append(sample)
    return samples


values = st.lists(st.sampled_from([-1.0, 0.25, 1.0]), min_size=1, max_size=6)


@pytest.mark.parametrize("settings", [GrpoSettings(), DrGrpoSettings(), RlooSettings()], ids=lambda s: s.name)
@given(groups=st.lists(values, min_size=1, max_size=4), data=st.data())
def test_advantages_equal_those_of_hones_training(
    settings: Any, groups: list[list[float]], data: st.DataObject
) -> None:
    counter = itertools.count()
    trajectories, samples = [], list[Sample]()
    for number, rewards in enumerate(groups):
        for reward in rewards:
            index = next(counter)
            trajectories.append(
                trajectory(
                    forked_tree(),
                    rollout_id=str(index),
                    group_id=str(number),
                    reward=reward,
                    outcome="resolved",
                )
            )
            for _ in range(data.draw(st.integers(1, 3))):
                sample = pending(index, number)
                sample.rollout_id, sample.reward = index, reward
                samples.append(sample)
    expected = compute_advantages(trajectories, settings).advantages

    raw, found = advantages(data.draw(st.permutations(samples)), settings)

    assert len(raw) == len(found) == len(samples)
    shuffled = advantages(samples, settings)[1]
    for sample, value in zip(samples, shuffled, strict=True):
        assert value == pytest.approx(expected.get(str(sample.rollout_id), 0.0), abs=1e-9)


def test_forks_of_one_rollout_do_not_move_the_baseline() -> None:
    plain = advantages(rewarded(1.0, -1.0, -1.0, -1.0), GrpoSettings())[1]
    forked = advantages(rewarded(1.0, forks=5) + rewarded(-1.0, -1.0, -1.0, first=1), GrpoSettings())[1]

    assert forked[:5] == [plain[0]] * 5
    assert forked[5:] == plain[1:]


def test_fault_changes_no_advantage_and_has_none() -> None:
    raw, found = advantages(rewarded(1.0, None, -1.0), GrpoSettings())

    clean = advantages(rewarded(1.0, -1.0), GrpoSettings())[1]
    assert found == [clean[0], 0.0, clean[1]]
    assert raw == [1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("rewards", "constant", "reason"),
    [
        ([1.0, -1.0], True, None),
        ([1.0, 1.0], True, "zero_variance"),
        ([1.0, 1.0], False, None),
        ([1.0, None], False, "infrastructure_fault"),
        ([None, None], True, "infrastructure_fault"),
    ],
)
def test_group_is_replaced_for_a_fault_or_equal_rewards(
    rewards: list[float | None], constant: bool, reason: str | None
) -> None:
    samples = rewarded(*rewards, forks=2)
    nested = [samples[i : i + 2] for i in range(0, len(samples), 2)]

    assert dropped_reason(nested, constant=constant) == reason


def test_metrics_count_a_forked_rollout_once() -> None:
    solved = fill_samples(pending(0), trajectory(forked_tree(), forks={"compacted": 1}), masked=False)
    limit = fill_samples(pending(1), trajectory(forked_tree(), Outcome.TURN_LIMIT), masked=False)

    found = metrics([*solved, *limit[:1]])

    assert found["hone/rollouts"] == 2
    assert found["hone/samples_per_rollout"] == 1.5
    assert found["hone/forks"] == 0.5
    assert found["hone/outcome/turn_limit"] == 0.5


def reply(reason: str, ids: list[int], version: str | None = "3") -> dict[str, Any]:
    logprobs = [[-0.5 * (i + 1), token, None] for i, token in enumerate(ids)]
    meta = {"finish_reason": {"type": reason}, "output_token_logprobs": logprobs, "weight_version": version}
    return {"text": "", "meta_info": meta}


@pytest.mark.parametrize(
    ("reason", "ids", "finish"),
    [
        ("stop", [7, 2], Finish.STOP),
        ("length", [7, 8], Finish.LENGTH),
        ("abort", [7], Finish.ABORT),
        ("abort", [], Finish.ABORT),
    ],
)
def test_reply_of_sglang_is_read_with_its_logprobs(reason: str, ids: list[int], finish: Finish) -> None:
    completion = completion_of(reply(reason, ids), SAMPLING)

    assert completion.finish is finish
    assert completion.token_ids.tolist() == ids
    assert completion.logprobs.tolist() == [-0.5 * (i + 1) for i in range(len(ids))]
    assert completion.version.tolist() == [3] * len(ids)


@pytest.mark.parametrize(("label", "version"), [("12", 12), ("default", 0), (None, 0)])
def test_name_of_the_first_weights_is_version_zero(label: str | None, version: int) -> None:
    completion = completion_of(reply("stop", [2], label), SAMPLING)

    assert np.unique(completion.version).tolist() == [version]


def test_request_has_the_names_of_sglang() -> None:
    body = payload([1, 2], SAMPLING, context_tokens=9)

    assert body["input_ids"] == [1, 2]
    assert body["return_logprob"] is True
    assert body["sampling_params"] == {
        "max_new_tokens": 12,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def test_prompt_that_sglang_would_refuse_overflows_the_context() -> None:
    payload([1] * 93, SAMPLING, context_tokens=100)  # the longest that a server with this context takes

    with pytest.raises(ContextOverflow):
        payload([1] * 94, SAMPLING, context_tokens=100)
