"""From stored scores of turns to rewards, and back from the disk."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.grading.progress import shaping
from hone.grading.settings import JudgeSettings, ProgressSettings
from hone.outcomes import Outcome
from hone.rollout.errors import RolloutError
from hone.rollout.groups import Group
from hone.rollout.rewards import final_score, summary, weigh
from hone.rollout.store import Store
from hone.types import (
    FinalScore,
    Judgement,
    ProgressScores,
    ProgressStatus,
    Scores,
    Trajectory,
    TurnProgress,
    Vote,
)
from tests.rollout.real import tasks
from tests.train.trajectories import trajectory, with_turns

NO_JUDGE, NO_PROGRESS = JudgeSettings(), ProgressSettings()
score = st.floats(-1, 1)
some_scores = st.dictionaries(st.integers(0, 5), score, min_size=1)
phi = st.none() | st.floats(0, 1)


def scored(
    scores: dict[int, float] | None = None,
    potentials: list[float | None] | None = None,
    *,
    reward: float = 1.0,
    turns: int = 6,
) -> Trajectory:
    made = with_turns(trajectory("r", reward=reward), [1, *[None] * (turns - 1)])
    return dataclasses.replace(
        made,
        scores=Scores(
            judgements=None if scores is None else tuple(judged(i, s) for i, s in scores.items()),
            progress=None if potentials is None else progress(potentials),
        ),
    )


def judged(index: int, score: float) -> Judgement:
    vote = Vote(score=score, latency_ms=2.0, raw_text="", ok=True)
    return Judgement(step_index=index, votes=(vote,))


def progress(potentials: list[float | None]) -> ProgressScores:
    steps = (
        TurnProgress(step_index=i, status=ProgressStatus.OK, changed=True, score=value)
        for i, value in enumerate(potentials)
    )
    return ProgressScores(initial_score=0.0, steps=tuple(steps))


def judge(coefficient: float = 1.0) -> JudgeSettings:
    return JudgeSettings(enabled=True, coefficient=coefficient)


def test_scores_are_joined_by_turn_and_weighted() -> None:
    made = weigh(
        scored({0: 1.0, 3: -1.0}, [0.0, 0.5, 0.5, 1.0], reward=-1.0),
        judge(0.5),
        ProgressSettings(enabled=True, coefficient=2.0),
    )
    assert made.turn_rewards == {0: 0.5, 1: 1.0, 2: 0.0, 3: -0.5 + 1.0}
    assert made.reward == -1.0  # the outcome's own
    assert final_score(made) == -1.0 + 0.5 * 0.0 + 2.0 * 1.0
    assert made.scores.final == FinalScore(
        score=1.0,
        acc=0.0,
        outcome_reward=-1.0,
        prm_step_mean=0.0,
        prm_step_coef=0.5,
        progress_sum=1.0,
        progress_coef=2.0,
    )


@given(
    st.dictionaries(st.integers(0, 5), score, min_size=1), st.floats(0.01, 3), st.sampled_from([1.0, -1.0])
)
def test_final_score_adds_weighted_mean_score_to_outcome(
    scores: dict[int, float], coefficient: float, reward: float
) -> None:
    made = weigh(scored(scores, reward=reward), judge(coefficient), NO_PROGRESS)
    mean = sum(scores.values()) / len(scores)
    assert final_score(made) == pytest.approx(reward + coefficient * mean)
    assert made.turn_rewards == pytest.approx({i: coefficient * s for i, s in scores.items()})
    assert weigh(made, judge(coefficient), NO_PROGRESS) == made  # weighing again changes nothing


@given(st.lists(phi, max_size=8), st.floats(0, 1))
def test_undiscounted_progress_sums_to_end_minus_start(potentials: list[float | None], before: float) -> None:
    rewards = shaping(potentials, before=before, gamma=1.0)
    known = [value for value in potentials if value is not None]
    assert sum(rewards) == pytest.approx((known[-1] if known else before) - before)
    assert len(rewards) == len(potentials)
    discounted = shaping(potentials, before=before, gamma=0.5)
    states, last = [before], before
    for value in potentials:
        last = last if value is None else value
        states.append(last)
    assert discounted == pytest.approx([0.5 * b - a for a, b in itertools.pairwise(states)])


def test_unrewarded_scores_give_no_turn_rewards() -> None:
    made = scored({0: 1.0}, [1.0])
    recorded = weigh(made, judge(0.0), ProgressSettings(enabled=True, coefficient=0.0))
    assert recorded.turn_rewards == {}
    with pytest.raises(RolloutError, match="no final score"):
        final_score(recorded)
    assert weigh(weigh(made, judge(), NO_PROGRESS), NO_JUDGE, NO_PROGRESS).turn_rewards == {}


def test_rewarding_missing_scores_is_refused() -> None:
    with pytest.raises(RolloutError, match="was collected without judge"):
        weigh(scored(potentials=[0.5]), judge(), NO_PROGRESS)
    with pytest.raises(RolloutError, match="was collected without progress"):
        weigh(scored({0: 1.0}), NO_JUDGE, ProgressSettings(enabled=True))


def test_infrastructure_fault_has_no_turn_rewards() -> None:
    fault = dataclasses.replace(scored({0: 1.0}), outcome=Outcome.ENGINE_ERROR, reward=None)
    assert weigh(fault, judge(), NO_PROGRESS).turn_rewards == {}


@settings(deadline=None, max_examples=25)
@given(some_scores, st.lists(phi, max_size=6))
def test_stored_scores_and_rewards_are_loaded_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[int, float], potentials: list[float | None]
) -> None:
    measured = ProgressSettings(enabled=True, gamma=0.9)
    made = weigh(scored(scores, potentials), judge(1 / 3), measured)
    store = Store(tmp_path_factory.mktemp("rollouts"))
    name = store.save(made, group=0, index=0)
    loaded = store.load(name)
    assert {i: r.hex() for i, r in loaded.turn_rewards.items()} == {
        i: float(r).hex() for i, r in made.turn_rewards.items()
    }
    assert loaded.scores == made.scores
    again = weigh(loaded, judge(1 / 3), measured)
    assert again.turn_rewards == made.turn_rewards
    meta = json.loads((store.root / name / "meta.json").read_text())
    block = meta["sample_metadata"]["prm"]
    assert set(block) == {"enabled", "step_scores", "step_mean_score", "step_details"}
    assert block["step_scores"] == [step["mean_score"] for step in block["step_details"]]
    assert set(block["step_details"][0]) == {
        "status", "step_index", "scores", "valid_scores", "valid_vote_count", "mean_score", "votes",
    }  # fmt: skip


def test_group_with_unequal_turn_rewards_has_variance() -> None:
    def group(*members: Trajectory) -> Group:
        return Group(group_id="g", task=tasks(1)[0], trajectories=members)

    same = scored({0: 1.0})
    assert group(same, same).zero_variance
    assert not group(
        weigh(same, judge(), NO_PROGRESS), weigh(scored({0: -1.0}), judge(), NO_PROGRESS)
    ).zero_variance
    nothing = weigh(scored({0: 0.0}), judge(), NO_PROGRESS)
    assert group(nothing, weigh(scored({}), judge(), NO_PROGRESS)).zero_variance


def test_metrics_count_votes_failures_and_progress() -> None:
    vote = Vote(score=0, latency_ms=8.0, raw_text="", ok=False, error="no reply")
    failed = Judgement(step_index=1, votes=(vote,))
    one = scored({0: 0.5}, [0.0, 0.75, 0.5])
    scores = dataclasses.replace(one.scores, judgements=(*(one.scores.judgements or ()), failed))
    one = dataclasses.replace(one, scores=scores)
    measured = summary([weigh(one, judge(), NO_PROGRESS), trajectory("plain")])
    assert measured == {
        "turn_reward": pytest.approx(0.25),
        "judge/steps": 2,
        "judge/votes": 2,
        "judge/invalid_share": 0.5,
        "judge/failed_share": 0.5,
        "judge/latency_ms": 5.0,
        "judge/latency_ms_max": 8.0,
        "judge/score": 0.5,
        "progress/states": 3,
        "progress/unknown_share": 0,
        "progress/gained": pytest.approx(0.375),
        "progress/lost": pytest.approx(0.125),
    }
    assert summary([trajectory("plain")]) == {}


def test_share_of_unknown_progress_is_over_all_measured_states() -> None:
    measured = scored(potentials=[0.0, 0.5])
    assert measured.scores.progress is not None
    known, last = measured.scores.progress.steps
    unknown = dataclasses.replace(last, status=ProgressStatus.NO_VERDICT, score=None)
    steps = (known, unknown, unknown, unknown)
    progress = dataclasses.replace(measured.scores.progress, steps=steps)
    one = dataclasses.replace(measured, scores=Scores(progress=progress))
    assert summary([one])["progress/unknown_share"] == 0.75
