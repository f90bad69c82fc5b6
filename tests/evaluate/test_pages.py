"""The pages of a report: complete, readable without scripts, and safe whatever a model wrote."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.evaluate import report, results
from hone.evaluate.rollout_page import conversation, line_kind, rollout_page
from hone.evaluate.settings import EvaluateSettings
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.types import Call, Sampler, Signal, TestStatus, Trajectory, Verdict
from hone.utils.text import visible
from tests.cli.fake_run import trajectory
from tests.evaluate.pages import read

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><b>&amp; {{ 7*7 }} {% raw %}"
PRICED = EvaluateSettings(price_per_million_prompt=1.0, price_per_million_sampled=4.0, samples=4)
hostile = st.text(st.characters(exclude_categories=())) | st.sampled_from([ATTACK, "\x1b[2J", "\ud800", ""])


def row(task: str, sample: int, outcome: Outcome, **more: Any) -> dict[str, Any]:
    resolved = outcome is Outcome.RESOLVED
    return {
        "instance_id": task,
        "sample": sample,
        "resolved": resolved,
        "exit_status": outcome.value,
        "patch_source": "git_diff",
        "n_steps": 4 + sample,
        "error": None,
        "elapsed": 12.5 * (sample + 1),
        "run_dir": f"{task}__{sample}",
        "score": float(resolved),
        "reward": 1.0,
        "prompt_tokens": 1000,
        "tokens": 100,
        "engine_s": 2.0,
        "command_timeouts": 0,
        "group": "family",
        **more,
    }


def evaluation(rows: list[dict[str, Any]], **more: Any) -> str:
    named = {"model": "m", "data": "d", "trainable": True, "args": {}, **more}
    return report.evaluation_page(rows, results.summarise(rows, PRICED, **named), PRICED)


def said(*messages: dict[str, Any], **more: Any) -> Trajectory:
    return dataclasses.replace(trajectory("r", Outcome.RESOLVED), messages=messages, **more)


def test_report_shows_every_figure_and_links_every_sample():
    outcomes = [Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.RESOLVED, Outcome.TURN_LIMIT]
    rows = [row("flaky", i, outcome) for i, outcome in enumerate(outcomes)]
    rows += [row("hard", i, Outcome.UNRESOLVED) for i in range(4)]
    rows += [row("solved", i, Outcome.RESOLVED) for i in range(3)] + [row("solved", 3, Outcome.ENGINE_ERROR)]
    page = read(evaluation(rows))
    for text in ("45.5 %", "pass@4", "turn_limit", "infrastructure", "family", "Cost", "Sampled tokens"):
        assert text in page.text
    assert "Never resolved: 1 tasks" in page.text
    assert "Sometimes resolved: 1 tasks" in page.text
    assert "1 of 12 samples ended in an infrastructure fault" in page.text
    assert "0.0168" in page.text  # 12 times 1,000 prompt and 100 sampled tokens
    for each in rows:
        assert f"rollouts/{each['run_dir']}/rollout.html" in page.links
        assert f"rollouts/{each['run_dir']}/patch.diff" in page.links
    assert "token ids" not in page.text
    assert "never trained on" in read(evaluation(rows, trainable=False)).text


def test_report_of_scripted_samples_omits_missing_figures():
    rows = [row("a", 0, Outcome.RESOLVED, tokens=0, prompt_tokens=0, engine_s=0.0)]
    page = read(evaluation(rows, trainable=False))
    for text in ("pass@", "Cost", "Sampled tokens", "engine", "Never resolved", "never trained on"):
        assert text not in page.text


def test_report_of_only_faults_is_rendered():
    page = read(evaluation([row("a", 0, Outcome.ENGINE_ERROR, score=None)]))
    assert "0 of 0" in page.text


def test_report_shows_the_fault_of_every_outcome():
    counted = report.outcome_counts({outcome.value: 2 for outcome in Outcome})
    assert {each.outcome: each.fault for each in counted} == {
        outcome.value: rule.fault.value for outcome, rule in OUTCOME_RULES.items()
    }
    assert len({(each.fault, each.shade) for each in counted}) == len(Outcome)
    assert sum(each.share for each in counted) == pytest.approx(1)


def test_chart_contains_every_sample_once():
    rng = random.Random(0)
    rows = [
        row(f"t{i}", 0, rng.choice([Outcome.RESOLVED, Outcome.UNRESOLVED]), elapsed=rng.expovariate(0.1))
        for i in range(200)
    ]
    for each in report.distributions(rows, PRICED):
        assert sum(bin.resolved for bin in each.bins) == sum(r["resolved"] for r in rows)
        assert sum(bin.resolved + bin.others for bin in each.bins) == 200
        assert each.smallest <= each.median <= each.p90 <= each.largest


def test_rollout_page_shows_every_part_of_a_rollout():
    reply = trajectory("r", Outcome.RESOLVED).turns[0].reply
    calls = (
        Call(index=0, node=1, purpose="main", fork=None, prompt_tokens=512, sampled_tokens=22, seconds=0.5),
        Call(index=1, node=None, purpose="side", fork="rewritten", prompt_tokens=1800, sampled_tokens=9,
             seconds=0.5),
    )  # fmt: skip
    verdict = Verdict(
        resolved=False,
        tests={"t.py::ok": TestStatus.PASSED, "t.py::bad": TestStatus.FAILED},
        score=0.5,
        tampered="conftest.py was changed",
        log="E assert 1 == 2",
    )
    record = said(
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": [{"type": "text", "text": "add is wrong"}]},
        {"role": "assistant", "content": reply, "reasoning_content": "Let me think.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]},
        {"role": "tool", "content": "adder.py"},
        verdict=verdict,
        error="the engine was slow",
        patch="diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n",
        calls=calls,
        forks={"rewritten": 1},
        sampler=Sampler(sampling={"temperature": 0.7}),
        signals=(Signal(turn=0, kind="history", command="git log --all"),),
    )  # fmt: skip
    html = rollout_page(record)
    page = read(html)
    for text in (
        "You fix bugs.", "add is wrong", "turn 0, 2 tokens, exit 0", "Let me think.",
        'bash({"command": "ls"})', "adder.py", "t.py::bad", "failed", "E assert 1 == 2",
        "conftest.py was changed", "the engine was slow", "Forks: rewritten", "side", "1,800", "31",
        "temperature 0.7", "git log --all",
    ):  # fmt: skip
        assert text in page.text, text
    assert page.text.index("t.py::bad") < page.text.index("t.py::ok")  # what failed comes first
    assert '<span class="added">+new</span>' in html
    assert "#turn-0" in page.links
    assert "../../report.html" in page.links


def test_unmatched_replies_are_shown_apart_from_turns():
    record = said({"role": "user", "content": "go"})  # one turn, no reply among the messages
    assert [message.turn for message in conversation(record)] == [None]
    page = read(rollout_page(record))
    assert "turn by turn" in page.text
    assert record.turns[0].reply.strip() in page.text


@pytest.mark.parametrize(
    ("line", "kind"),
    [("diff --git a/x b/x", "file"), ("@@ -1 +1 @@", "hunk"), ("+x", "added"), ("-x", "removed"),
     (" x", "context"), ("", "context")],
)  # fmt: skip
def test_diff_lines_are_classified(line: str, kind: str):
    assert line_kind(line) == kind


def test_hidden_characters_are_escaped():
    shown = visible("a\x00\x1b[2J\u202eb\u200b\ud83d\r\n\tc")
    assert shown == r"a\x00\x1b[2J\u202eb\u200b\ud83d\x0d" + "\n\tc"
    assert visible("grün 漢 🙂") == "grün 漢 🙂"


@settings(max_examples=40, deadline=None)
@given(hostile, hostile, hostile)
def test_rollout_text_is_escaped_in_its_page(one: str, two: str, three: str):
    base = trajectory("r", Outcome.RESOLVED)
    turn = dataclasses.replace(base.turns[0], reply=one, action=two, observation=three)
    call = {"id": one, "type": "function", "function": {"name": two, "arguments": three}}
    record = dataclasses.replace(
        base,
        task_id=one or "t",
        turns=(turn,),
        messages=(
            {"role": one, "content": two},
            {"role": "assistant", "content": three, "reasoning_content": one, "tool_calls": [call, two]},
            {"role": "user", "content": [{"text": two}, {"image": three}]},
        ),
        patch=f"diff --git a/x b/x\n+{two}\n{three}",
        verdict=Verdict(
            resolved=True, tests={three or "t": TestStatus.FAILED}, score=1.0, tampered=one, log=two
        ),
        error=three,
        forks={one: 1},
        signals=(Signal(turn=0, kind=two, command=three),),
    )
    html = rollout_page(record)
    html.encode("utf-8")
    read(html)


@settings(max_examples=25, deadline=None)
@given(hostile, hostile)
def test_names_in_a_report_are_escaped(one: str, two: str):
    rows = [
        row(one or "t", 0, Outcome.RESOLVED, group=two or "g"),
        row("u", 0, Outcome.UNRESOLVED, error=one),
    ]
    html = evaluation(rows, model=one, data=two)
    html.encode("utf-8")
    read(html)


def test_html_in_a_rollout_is_shown_as_text():
    page = read(rollout_page(said({"role": "user", "content": ATTACK}, patch=ATTACK)))
    assert page.text.count(ATTACK) == 2
    assert json.dumps(ATTACK)[1:10] in page.text
    assert ATTACK in read(evaluation([row("t", 0, Outcome.RESOLVED, group=ATTACK)])).text


def test_sweep_page_has_a_row_per_temperature():
    rows = [row("a", i, Outcome.RESOLVED) for i in range(2)]
    summary = results.summarise(rows, PRICED, model="m", data="d", trainable=True, args={})
    evaluations = [{"temperature": t, "directory": f"temperature-{t:g}", **summary} for t in (0.0, 0.7)]
    page = read(report.sweep_page({"model": "m", "data": "d", "evaluations": evaluations}))
    assert page.links == ["sweep.json", "temperature-0/report.html", "temperature-0.7/report.html"]
    assert "pass@2" in page.text
