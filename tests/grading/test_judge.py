"""Votes, failures and limits of the judge; for its prompt's safety see test_judge_injection."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hone.grading.judge as judge_module
from hone.grading.judge import TurnJudge, failed_vote
from hone.grading.judge_prompt import clip
from hone.grading.settings import JudgeSettings
from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish
from hone.policy.settings import LocalEngineSettings
from tests.grading.judging import ScriptedJudge, judge_of, judged, naive, text_judge, turn


def saying(*replies: str) -> Any:
    """An engine whose i-th vote says the i-th of `replies`, and the last one ever after."""
    rest = list(replies)

    async def answer(messages: list[tuple[str, str]], seed: int) -> str:
        return rest.pop(0) if len(rest) > 1 else rest[0]

    return ScriptedJudge(answer)


@pytest.mark.parametrize(
    ("replies", "status", "score", "valid"),
    [
        (["\\boxed{+1}"] * 3, "ok", 1.0, 3),
        (["\\boxed{+1}", "\\boxed{-1}", "\\boxed{-1}"], "ok", -1 / 3, 3),
        (["\\boxed{+1}", "I cannot tell.", "\\boxed{+1}"], "ok", 1.0, 2),
        (["I cannot tell."] * 3, "invalid_result", 0.0, 0),
    ],
)
def test_score_is_the_mean_of_valid_votes(replies: list[str], status: str, score: float, valid: int) -> None:
    (judgement,) = judged(judge_of(saying(*replies)), [turn(0)])
    assert (judgement.status, judgement.score) == (status, pytest.approx(score))
    assert len(judgement.valid_scores) == valid
    assert sorted(vote.raw_text for vote in judgement.votes) == sorted(replies)


def test_votes_have_own_seeds_and_turns_own_prompts() -> None:
    engine = ScriptedJudge(naive)
    first = judged(judge_of(engine), [turn(0), turn(1, action="ls")], seed=5)
    prompts = engine.prompt_ids
    assert len(prompts) == 6
    assert len({tuple(ids) for ids in prompts}) == 2
    seeds: list[int] = []

    async def note(messages: list[tuple[str, str]], seed: int) -> str:
        seeds.append(seed)
        return "\\boxed{+1}"

    judged(text_judge(note), [turn(0)], seed=5)
    assert seeds == [5000]
    again = ScriptedJudge(naive)
    assert [j.score for j in judged(judge_of(again), [turn(0), turn(1, action="ls")], seed=5)] == [
        j.score for j in first
    ]
    assert again.prompt_ids == prompts  # a seeded judge is repeatable
    assert len({*engine.released}) == 6


def test_vote_has_its_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(judge_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def answer(messages: list[tuple[str, str]], seed: int) -> str:
        clock[0] += 0.25
        return "\\boxed{+1}"

    (judgement,) = judged(text_judge(answer), [turn(0)])
    assert {vote.latency_ms for vote in judgement.votes} == {250.0}


def test_failed_vote_has_no_score() -> None:
    vote = failed_vote("no reply", latency_ms=3.0)
    assert (vote.score, vote.ok, vote.raw_text, vote.latency_ms) == (0, False, "", 3.0)


def test_judgements_keep_their_turn_index() -> None:
    turns = [turn(0), turn(1, action=None, exit_code=None), turn(2, exit_code=1), turn(3)]
    judgements = judged(judge_of(ScriptedJudge(naive)), turns)
    assert [(j.step_index, j.score) for j in judgements] == [(0, 1.0), (2, -1.0), (3, 1.0)]


@pytest.mark.parametrize("skip_submit", [True, False])
def test_submitting_turn_is_not_judged_by_default(skip_submit: bool) -> None:
    async def run() -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            judge = judge_of(ScriptedJudge(naive), skip_submit=skip_submit)
            judging = TurnJudge(judge, tasks, issue="", name="r", seed=1)
            judging.observe(turn(0), submits=False)
            judging.observe(turn(1), submits=True)
            return [judgement.step_index for judgement in await judging.settle()]

    assert asyncio.run(run()) == ([0] if skip_submit else [0, 1])


def test_prompt_holds_issue_history_step_and_result() -> None:
    engine = ScriptedJudge(naive)
    turns = [turn(i, action=f"<cmd-{i}>", observation=f"out-{i} " + "x" * 2000) for i in range(12)]
    turns.append(turn(12, action="<cmd-12>", observation="y" * 5000, reply="Here is why. " + "z" * 9000))
    judged(judge_of(engine, votes=1), turns, issue="i" * 9000)
    (system, user) = engine.prompts[-1]
    text = user[1]
    headers = re.findall(r"^## .*$", text, re.MULTILINE)
    assert system[0] == "system"
    assert headers == [
        "## Issue Description",
        "## Recent History (8 steps)",
        "## Current Step to Evaluate (step 12)",
        "## Scoring Rules",
    ]
    assert [f"<cmd-{i}>" in text for i in range(13)] == [i >= 4 for i in range(13)]
    assert text.count("i" * 4000) == 2
    assert text.count("| y") == 2  # head and tail
    assert "... (1000 characters omitted) ..." in text
    assert "z" * 9000 in text  # the reply under evaluation is shown whole
    assert "(returncode=0)" in text


@given(text=st.text(max_size=60), limit=st.integers(1, 70))
def test_clipping_keeps_head_and_tail(text: str, limit: int) -> None:
    shown = clip(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    head, _, rest = shown.partition("\n... (")
    number, _, tail = rest.partition(" characters omitted) ...\n")
    omitted = int(number)
    assert len(head) + len(tail) == limit
    assert head + text[len(head) : len(head) + omitted] + tail == text


def failing(error: Exception) -> Any:
    async def answer(messages: list[tuple[str, str]], seed: int) -> str:
        raise error

    return ScriptedJudge(answer)


@pytest.mark.parametrize("error", [EngineError("gone"), ContextOverflow(9, 8)])
def test_failing_judge_scores_zero(error: Exception) -> None:
    (judgement,) = judged(judge_of(failing(error)), [turn(0)])
    assert (judgement.status, judgement.score) == ("exception", 0.0)
    assert all(str(error) in str(vote.error) for vote in judgement.votes)


def test_votes_before_a_judge_failure_count() -> None:
    left = [True]

    async def dies(messages: list[tuple[str, str]], seed: int) -> str:
        if not left:
            raise EngineError("killed")
        left.pop()
        return "\\boxed{-1}"

    first, second = judged(judge_of(ScriptedJudge(dies)), [turn(0), turn(1)])
    assert (first.status, first.score) == ("ok", -1.0)
    assert [vote.ok for vote in first.votes].count(True) == 1
    assert second.status == "exception"


async def never(messages: list[tuple[str, str]], seed: int) -> str:
    await asyncio.Event().wait()
    raise AssertionError


def test_hanging_judge_is_cancelled() -> None:
    (slow,) = judged(judge_of(ScriptedJudge(never), timeout_s=0.01), [turn(0)])
    assert slow.status == "exception"
    assert "no vote within 0.01 s" in str(slow.votes[0].error)
    engine = ScriptedJudge(never)
    (late,) = judged(judge_of(engine, wait_s=0.01), [turn(0)])
    assert late.status == "exception"
    assert "of the rollout's end" in str(late.votes[0].error)
    assert engine.under_way == 0


def test_votes_run_concurrently_within_the_limit() -> None:
    gate = asyncio.Event()

    async def waits(messages: list[tuple[str, str]], seed: int) -> str:
        await gate.wait()
        return "\\boxed{+1}"

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            judge = judge_of(engine, concurrency=4)
            ones = [TurnJudge(judge, tasks, issue="", name=f"r{i}", seed=i) for i in range(3)]
            for judging in ones:
                judging.observe(turn(0), submits=False)  # returns at once
            await engine.arrived(4)
            gate.set()
            for judging in ones:
                (judgement,) = await judging.settle()
                assert judgement.score == 1.0

    engine = ScriptedJudge(waits)
    asyncio.run(run())
    assert engine.most_under_way == 4


def test_cancellation_leaves_no_task() -> None:
    engine = ScriptedJudge(never)

    async def run() -> None:
        async def rollout() -> None:
            async with asyncio.TaskGroup() as tasks:
                judging = TurnJudge(judge_of(engine), tasks, issue="", name="r", seed=1)
                judging.observe(turn(0), submits=False)
                await judging.settle()

        job = asyncio.create_task(rollout())
        await engine.arrived(3)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert engine.under_way == 0
    assert len(engine.released) == 3


def test_truncated_vote_is_invalid() -> None:
    class Cut(ScriptedJudge):
        async def generate(self, *arguments: Any, **options: Any) -> Completion:
            return dataclasses.replace(await super().generate(*arguments, **options), finish=Finish.LENGTH)

    async def yes(messages: list[tuple[str, str]], seed: int) -> str:
        return "\\boxed{+1}"

    (cut,) = judged(judge_of(Cut(yes), votes=1), [turn(0)])
    assert cut.status == "invalid_result"


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"judge\.coefficient has no effect while judge\.enabled is false"):
        JudgeSettings(coefficient=0.5)
    with pytest.raises(ValueError, match=r"judge\.engine has no effect"):
        JudgeSettings(engine=LocalEngineSettings(context_tokens=77))
    with pytest.raises(ValueError, match="leaves no room for a prompt"):
        JudgeSettings(enabled=True, max_tokens=4096, engine=LocalEngineSettings(context_tokens=2048))
    assert JudgeSettings(enabled=True).rewards
    assert not JudgeSettings(enabled=True, coefficient=0).rewards
