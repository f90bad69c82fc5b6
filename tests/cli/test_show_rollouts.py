"""The rollouts of a run and the reasons of a verdict, as `hone show` tells them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hone.cli import main
from hone.outcomes import Outcome
from hone.rollout.store import Store
from hone.types import TestStatus, Verdict
from tests.cli.fake_run import make_run, trajectory

Show = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    def shown(*arguments: object, code: int = 0) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["hone", "show", *map(str, arguments)])
        assert main() == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return shown


def test_outcomes_are_counted_and_chosen(run: Path, show: Show) -> None:
    assert "resolved 3, unresolved 1, turn limit 1" in show(run).replace("_", " ")
    table = json.loads(show(run, "--outcome", "resolved", "--sort", "rollout_id", "--limit", 2, "--json"))
    assert (table["found"], table["total"]) == (3, 7)
    assert [row["rollout_id"] for row in table["rows"]] == ["r00", "r10"]
    assert all(row["turns"] == 1 and row["sampled_tokens"] == 2 for row in table["rows"])


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (["--step", "1"], {"r10", "r11", "flat"}),
        (["--outcome", "sandbox_error"], {"broken"}),
        (["--task", "0007", "--step", "0", "--sort=-reward"], {"r00", "r01"}),
    ],
)
def test_rollouts_are_listed(run: Path, show: Show, chosen: list[str], found: set[str]) -> None:
    rows = json.loads(show(run, *chosen, "--json"))["rows"]
    assert {row["rollout_id"] for row in rows} == found
    text = show(run, *chosen)
    assert all((row["directory"] or row["rollout_id"]).rpartition("__")[0] in text for row in rows)


def test_unknown_outcome_and_field_are_named(run: Path, show: Show) -> None:
    assert "there is no outcome 'solved': choose one of resolved, " in show(
        run, "--outcome", "solved", code=2
    )
    assert "no field 'speed' to sort by: choose one of" in show(run, "--sort", "speed", code=2)


def test_failed_tests_are_explained(run: Path, show: Show) -> None:
    name = "tests/test_hidden.py::test_add"
    log = "\n".join(
        [
            "=" * 35 + " FAILURES " + "=" * 35,
            "_" * 30 + " test_add " + "_" * 30,
            "    def test_add():",
            ">       assert add(1, 2) == 3",
            "E       assert -1 == 3",
            "",
            "tests/test_hidden.py:4: AssertionError",
            "=" * 20 + " 1 failed in 0.01s " + "=" * 20,
        ]
    )
    verdict = Verdict(resolved=False, tests={name: TestStatus.FAILED}, score=0.0, log=log)
    made = replace(trajectory("why", Outcome.UNRESOLVED), verdict=verdict)
    stored = Store(run / "rollouts").save(made, group=9, index=9)

    text = show(f"{run}/{stored}")
    assert "failed   tests/test_hidden.py::test_add\n         assert -1 == 3" in text
    assert "E       assert -1 == 3" in text
    record = json.loads(show(f"{run}/{stored}", "--json"))
    assert record["log"] == log
    assert [(test["name"], test["status"], test["why"]) for test in record["tests"]] == [
        (name, "failed", "assert -1 == 3")
    ]
    assert record["turns"][-1]["action"] == "sed -i s/-/+/ adder.py"


def test_group_and_task_of_a_run_are_shown(run: Path, show: Show) -> None:
    group = json.loads(show(f"{run}/g1", "--json"))
    assert [row["rollout_id"] for row in group["rows"]] == ["r10", "r11", "flat"]
    assert group["parts_at"] == [None, None, None]
    task = json.loads(show(f"{run}/train-0007", "--json"))
    assert len(task["rows"]) == 7
    assert [point["value"] for point in task["rates"]] == [0.5, pytest.approx(2 / 3)]
    assert "add is wrong" in show(f"{run}/train-0007")


def test_tokens_of_a_rollout_are_printed(run: Path, show: Show) -> None:
    text = show(f"{run}/train-0007__g0__i0", "--tokens")
    assert "rendered, not sampled" in text
    assert "trained by step 0" in text
    assert "-0.5000" in text


def test_rollout_of_another_framework_is_printed_from_its_file(show: Show, tmp_path: Path) -> None:
    file = tmp_path / "foreign.json"
    step = {"step_id": 1, "source": "user", "message": "add is wrong"}
    reply = {"step_id": 2, "source": "agent", "message": "I fixed it."}
    agent = {"name": "other", "version": "1"}
    file.write_text(
        json.dumps({"schema_version": "ATIF-v1.4", "session_id": "s", "agent": agent, "steps": [step, reply]})
    )
    text = show(file)
    assert "add is wrong" in text
    assert "I fixed it." in text
    assert json.loads(show(file, "--json"))["agent"] == "other"
