"""Pages that stand alone: complete, readable without scripts, and safe whatever a model wrote."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.evaluate import results
from hone.evaluate.settings import EvaluateSettings
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.types import Call, Sampler, Signal, TestStatus, Trajectory, Turn, Verdict
from hone.utils.text import visible
from hone.view.conversation import conversation
from hone.view.distributions import distributions
from hone.view.library import Library
from hone.view.records import EvaluationPage
from hone.view.rollout_page import line_kind, page_of
from hone.view.web.html import render
from hone.view.web.links import Links
from hone.view.web.report import write_comparison, write_report
from tests.cli.fake_run import trajectory
from tests.view.pages import Page, parse, read
from tests.view.samples import line

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


def make_evaluation(folder: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    """A finished evaluation; the settings of `args` go into its summary."""
    folder.mkdir(exist_ok=True)
    args = {"evaluate": PRICED.model_dump(mode="json")}
    named = {"model": "m", "data": "d", "trainable": True, **more}
    named["args"] = {**args, **named.get("args", {})}
    (folder / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "summary.json").write_text(json.dumps(results.summarise(rows, PRICED, **named)))
    return folder


def report(folder: Path, rows: list[dict[str, Any]], **more: Any) -> Page:
    """The page of report.html, written into the evaluation's directory."""
    write_report(make_evaluation(folder, rows, **more))
    return read((folder / "report.html").read_text())


def said(*messages: dict[str, Any], **more: Any) -> Trajectory:
    return replace(trajectory("r", Outcome.RESOLVED), messages=messages, **more)


def rollout(record: Trajectory) -> str:
    """The page of a rollout as a server sends it."""
    values = {"page": page_of(record), "run": line("run"), "directory": "r", "lanes": None}
    return render("rollout.html.jinja", Links("/"), live=False, **values)


def test_report_shows_every_figure_and_links_every_file(tmp_path: Path):
    outcomes = [Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.RESOLVED, Outcome.TURN_LIMIT]
    rows = [row("flaky", i, outcome) for i, outcome in enumerate(outcomes)]
    rows += [row("hard", i, Outcome.UNRESOLVED) for i in range(4)]
    rows += [row("solved", i, Outcome.RESOLVED) for i in range(3)] + [row("solved", 3, Outcome.ENGINE_ERROR)]
    for each in rows:
        (tmp_path / "rollouts" / each["run_dir"]).mkdir(parents=True)
        (tmp_path / "rollouts" / each["run_dir"] / "patch.diff").touch()
    page = report(tmp_path, rows)
    for text in ("45.5 %", "pass@4", "turn limit", "infrastructure", "family", "Cost", "Sampled tokens"):
        assert text in page.text
    assert "1 never resolved" in page.text
    assert "1 sometimes resolved" in page.text
    assert "1 of 12 samples ended in an infrastructure fault" in page.text
    assert "0.0168" in page.text  # 12 times 1,000 prompt and 100 sampled tokens
    assert f"hone view {tmp_path}" in page.text  # what opens the rollouts
    patches = [f"rollouts/{each['run_dir']}/patch.diff" for each in rows]
    assert sorted(page.links) == sorted(["summary.json", "results.jsonl", *patches])  # what exists, no more
    assert "token ids" not in page.text
    assert "never trained on" in report(tmp_path, rows, trainable=False).text


def test_report_of_scripted_samples_omits_missing_figures(tmp_path: Path):
    rows = [row("a", 0, Outcome.RESOLVED, tokens=0, prompt_tokens=0, engine_s=0.0)]
    page = report(tmp_path, rows, trainable=False)
    for text in ("pass@", "Cost", "Sampled tokens", "engine", "never resolved", "never trained on"):
        assert text not in page.text


def test_report_of_only_faults_is_rendered(tmp_path: Path):
    page = report(tmp_path, [row("a", 0, Outcome.ENGINE_ERROR, score=None)])
    assert "0 of 0" in page.text
    assert "nothing was measured" in page.text


def test_evaluation_page_names_the_fault_of_every_outcome(tmp_path: Path):
    rows = [row("a", i, outcome) for i, outcome in enumerate(Outcome)]
    page = Library([make_evaluation(tmp_path, rows)]).run(tmp_path.name)
    assert isinstance(page, EvaluationPage)
    assert {each.outcome: each.fault for each in page.outcomes} == {
        outcome.value: rule.fault.value for outcome, rule in OUTCOME_RULES.items()
    }
    assert [each.total for each in page.outcomes] == [1] * len(Outcome)


def test_tasks_are_ordered_by_difficulty_and_marked(tmp_path: Path):
    rows = [row("easy", i, Outcome.RESOLVED) for i in range(2)]
    rows += [row("flaky", 0, Outcome.RESOLVED), row("flaky", 1, Outcome.UNRESOLVED)]
    rows += [row("near", 0, Outcome.UNRESOLVED, score=0.5), row("hard", 0, Outcome.NO_PATCH)]
    rows += [row("lost", 0, Outcome.ENGINE_ERROR)]
    page = Library([make_evaluation(tmp_path, rows)]).run(tmp_path.name)
    assert isinstance(page, EvaluationPage)
    assert [(task.id, task.solved) for task in page.tasks] == [
        ("hard", "never"),
        ("near", "never"),
        ("flaky", "sometimes"),
        ("easy", "always"),
        ("lost", ""),
    ]


def test_chart_contains_every_sample_once():
    rng = random.Random(0)
    rows = [
        row(f"t{i}", 0, rng.choice([Outcome.RESOLVED, Outcome.UNRESOLVED]), elapsed=rng.expovariate(0.1))
        for i in range(200)
    ]
    for each in distributions(rows, PRICED):
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
    html = rollout(record)
    page = parse(html)
    for text in (
        "You fix bugs.", "add is wrong", "turn 0", "2 tokens", "exit 0", "Let me think.",
        'bash({"command": "ls"})', "adder.py", "t.py::bad", "failed", "E assert 1 == 2",
        "conftest.py was changed", "the engine was slow", "rewritten", "side", "1,800",
        "temperature 0.7", "git log --all",
    ):  # fmt: skip
        assert text in page.text, text
    assert page.text.index("t.py::bad") < page.text.index("t.py::ok")  # what failed comes first
    assert '<span class="added">+new</span>' in html
    assert "#turn-0" in page.links


def test_unmatched_replies_are_shown_apart_from_turns():
    record = said({"role": "user", "content": "go"})  # one turn, no reply among the messages
    assert [message.turn for message in conversation(record)] == [None]
    assert [turn.role for turn in page_of(record).turns] == ["user", "turn"]
    assert (record.turns[0].action or "none") in parse(rollout(record)).text


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
    turn: Turn = replace(base.turns[0], reply=one, action=two, observation=three)
    call = {"id": one, "type": "function", "function": {"name": two, "arguments": three}}
    record = replace(
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
    html = rollout(record)
    html.encode("utf-8")
    page = parse(html)
    assert set(page.events) == {"script src"}
    assert (page.tags.count("script"), page.tags.count("img")) == (2, 0)


@settings(max_examples=25, deadline=None)
@given(hostile, hostile)
def test_names_in_a_report_are_escaped(one: str, two: str):
    rows = [
        row(one or "t", 0, Outcome.RESOLVED, group=two or "g", run_dir="a"),
        row("u", 0, Outcome.UNRESOLVED, error=one),
    ]
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), rows, model=one, data=two)


def test_html_is_shown_as_text(tmp_path: Path):
    page = parse(rollout(said({"role": "user", "content": ATTACK}, patch=ATTACK)))
    assert page.text.count(ATTACK) == 2
    assert ATTACK in report(tmp_path, [row("t", 0, Outcome.RESOLVED, group=ATTACK)]).text


def test_sweep_report_has_a_row_per_temperature(tmp_path: Path):
    rows = [row("a", i, Outcome.RESOLVED) for i in range(2)]
    summary = results.summarise(rows, PRICED, model="m", data="d", trainable=True, args={})
    evaluations = [{"temperature": t, "directory": f"temperature-{t:g}", **summary} for t in (0.0, 0.7)]
    (tmp_path / "sweep.json").write_text(json.dumps({"model": "m", "data": "d", "evaluations": evaluations}))
    report(tmp_path / "temperature-0", rows)
    write_report(tmp_path)
    page = read((tmp_path / "report.html").read_text())
    assert page.links == ["sweep.json", "temperature-0/report.html"]  # the other one is not there
    assert "pass@2" in page.text


def resolves(folder: Path, tasks: dict[str, bool], **args: Any) -> Path:
    """An evaluation with one sample for each task, and its report."""
    rows = [row(task, 0, Outcome.RESOLVED if won else Outcome.UNRESOLVED) for task, won in tasks.items()]
    report(folder, rows, args=args)
    return folder


def comparison(first: Path, second: Path, page: Path) -> Page:
    write_comparison(first, second, page)
    return read(page.read_text())


def test_run_name_never_becomes_a_link_scheme(tmp_path: Path):
    first = resolves(tmp_path / "javascript:alert(1)", {"up": False})
    second = resolves(tmp_path / "b", {"up": True})
    page = comparison(first, second, tmp_path / "c.html")
    assert page.links == ["javascript%3Aalert%281%29/report.html", "b/report.html"]


def test_comparison_shows_both_sides_and_links_their_reports(tmp_path: Path):
    attack = "<script>alert(1)</script>"
    first = resolves(tmp_path / "a", {"up": False, attack: True, "x": True}, prompts="y")
    second = resolves(tmp_path / "b", {"up": True, attack: False}, prompts=attack)
    (tmp_path / "pages").mkdir()
    page = comparison(first, second, tmp_path / "pages" / "c.html")
    assert page.links == ["../a/report.html", "../b/report.html"]
    assert page.text.count(attack) == 2  # a task that changed, and a setting that differs
    for text in (
        "does not show that either is better",
        "Tasks that changed",
        "Of the tasks, 1 are only in the first run",
        f"hone view {first} {second}",
        "differ in more than the model: 1 setting,",
    ):
        assert text in page.text, text


def test_two_evaluations_are_paired_on_the_server_too(tmp_path: Path):
    resolves(tmp_path / "a", {str(i): False for i in range(9)})
    resolves(tmp_path / "b", {str(i): True for i in range(9)})
    resolves(tmp_path / "c", {"other": True})
    library = Library([tmp_path])
    page = library.compare(["a", "b"])
    assert page.paired is not None
    assert (page.paired.first.rate, page.paired.second.rate) == (0.0, 1.0)
    assert page.paired.paired.p_value == pytest.approx(2 / 2**9)
    assert page.paired.changed[0].rollouts == (("0__0",), ("0__0",))
    assert page.unpaired == ""
    assert "share no task" in library.compare(["a", "c"]).unpaired
    assert library.compare(["a", "b", "c"]).paired is None
