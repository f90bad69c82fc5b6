"""Files of predictions are read, graded, reported and resumed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading import Grader, GradingSettings, TestRun
from hone.grading.predictions import Prediction, grade_predictions, read_predictions
from hone.grading.verdict import graded_entry, make_verdict, summarise, ungraded_entry
from hone.outcomes import Outcome
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.workspace import prepare
from hone.types import Task, TestStatus, Verdict
from tests.grading.example import BUGGY, FIXED, make_task, patch_of

ROWS = [
    {"instance_id": "a", "model_name_or_path": "m", "model_patch": "x\n"},
    {"instance_id": "b", "model_patch": None},
]


@pytest.mark.parametrize("form", ["lines", "list", "object"])
def test_predictions_are_read_in_every_format_of_the_harness(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("p.jsonl" if form == "lines" else "p.json")
    texts = {
        "lines": "\n".join(map(json.dumps, ROWS)),
        "list": json.dumps(ROWS),
        "object": json.dumps({row["instance_id"]: row for row in ROWS}),
    }
    path.write_text(texts[form])
    read = read_predictions(path, ())
    assert read.predictions == (
        Prediction(instance_id="a", patch="x\n", model="m"),
        Prediction(instance_id="b", patch=""),
    )
    assert read.refused == ()


def test_object_names_its_predictions_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"a": {"model_patch": "x"}, "b": {"model_patch": "y"}, "c": 5}))
    read = read_predictions(path, ())
    assert [(each.instance_id, each.patch) for each in read.predictions] == [("a", "x"), ("b", "y")]
    assert len(read.refused) == 1
    path.write_text("[1")
    with pytest.raises(TaskError, match="cannot read predictions from"):
        read_predictions(path, ())


def test_invalid_rows_are_refused_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows: list[Any] = [
        *ROWS,
        ROWS[0],
        {"instance_id": "../x"},
        {"instance_id": "\ud800"},
        {"instance_id": "c", "model_patch": 3},
        [],
        {},
    ]
    path.write_text("\n".join([*map(json.dumps, rows), "{not json"]))
    read = read_predictions(path, ())
    assert [each.instance_id for each in read.predictions] == ["a", "b"]
    assert [sentence.split(": ")[1] for sentence in read.refused] == [f"row {n}" for n in range(3, 10)]
    with pytest.raises(TaskError, match="cannot read rows"):
        read_predictions(tmp_path / "nothing.jsonl", ())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3))
def test_any_row_is_a_prediction_or_refused(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("rows") / "p.jsonl"
    path.write_text("\n".join(json.dumps({"instance_id": value, "model_patch": v}) for v in (value, "")))
    read = read_predictions(path, ())
    assert len(read.predictions) + len(read.refused) == 2


def test_summary_names_instances_by_their_outcomes() -> None:
    tasks = [dataclasses.replace(make_task(), id=name) for name in ("right", "cheat", "left")]
    checks = tasks[0].checks
    passed = dict.fromkeys(checks.named_tests, TestStatus.PASSED)
    graded = {
        task.id: graded_entry(
            task, make_verdict(checks, TestRun(statuses=passed, finished=True, tampered=evidence))
        )
        for task, evidence in zip(tasks[:2], (None, "a hook"), strict=True)
    }
    ungraded = {
        "lost": ungraded_entry(Outcome.GRADER_ERROR, "no disk"),
        "empty": ungraded_entry(Outcome.NO_PATCH),
    }
    summary = summarise({**graded, **ungraded}, tasks, ["right", "cheat", "lost", "empty"])
    assert {name: ids for name, ids in summary.items() if name.endswith("_ids")} == {
        "completed_ids": ["cheat", "right"],
        "incomplete_ids": ["left"],
        "empty_patch_ids": ["empty"],
        "submitted_ids": ["cheat", "empty", "lost", "right"],
        "resolved_ids": ["right"],
        "unresolved_ids": ["cheat"],
        "tampered_ids": ["cheat"],
        "error_ids": ["lost"],
        "infra_failure_ids": ["lost"],
        "ambiguous_failure_ids": [],
        "unknown_ids": ["empty", "lost"],
    }
    assert summary["failure_reasons"] == {"lost": "no disk"}
    assert [ungraded[name]["infra_failure"] for name in ("lost", "empty")] == [True, False]


def test_patch_that_the_grader_cannot_take_fails_alone(tmp_path: Path) -> None:
    class Defective(Grader):
        async def grade_uncached(self, task: Task, patch: str) -> Verdict:
            if task.id == "defect":
                raise ZeroDivisionError("nothing expects this")
            return await super().grade_uncached(task, patch)

    patches = {"surrogate": "+\ud800\n", "defect": "+x\n", "after": "no patch"}
    tasks = [dataclasses.replace(make_task(), id=name) for name in patches]
    predictions = [Prediction(instance_id=name, patch=patch) for name, patch in patches.items()]
    provider = make_provider(SandboxSettings(state_dir=tmp_path / "state"))  # never opened
    grader = Defective(provider, GradingSettings(), cache=tmp_path)
    summary = asyncio.run(grade_predictions(predictions, tasks, grader, out=tmp_path / "out"))
    outcomes = {name: summary["instances"][name]["outcome"] for name in patches}
    assert outcomes == {"surrogate": "unresolved", "defect": "crashed", "after": "unresolved"}
    assert sorted(summary["unresolved_ids"]) == sorted(patches)
    complete = {name for name in patches if (tmp_path / "out" / name / "graded.json").is_file()}
    assert complete == {"surrogate", "after"}
    assert "in grade_uncached" in (tmp_path / "out" / "defect" / "test_output.txt").read_text()


@pytest.mark.sandbox
def test_reports_follow_the_harness_and_grading_resumes(tmp_path: Path) -> None:
    cache, out = tmp_path / "workspaces", tmp_path / "out"
    good = make_task()
    tasks = [dataclasses.replace(good, id=name) for name in ("right", "wrong", "none", "broken", "other")]
    tasks += [dataclasses.replace(good, id="homeless", checks=dataclasses.replace(good.checks, rule="x"))]
    workspace = prepare(good, cache)
    fix = patch_of(workspace, tmp_path, {"stats.py": FIXED})
    half = patch_of(workspace, tmp_path, {"stats.py": BUGGY.replace("a - b", "3")})
    patches = {"right": fix, "wrong": half, "none": "", "broken": "no patch", "homeless": fix, "unknown": fix}
    predictions = [Prediction(instance_id=name, patch=patch) for name, patch in patches.items()]

    def run(tasks: list[Task]) -> tuple[dict[str, Any], list[str]]:
        ran: list[str] = []

        async def scenario() -> dict[str, Any]:
            async with make_provider(SandboxSettings(state_dir=tmp_path / "state")) as provider:
                starting = provider.start

                async def start(spec: Any) -> Any:
                    ran.append("started")
                    return await starting(spec)

                provider.start = start  # type: ignore[method-assign]
                grader = Grader(provider, GradingSettings(), cache=cache)
                return await grade_predictions(predictions, tasks, grader, out=out)

        return asyncio.run(scenario()), ran

    summary, started = run(tasks)
    assert len(started) == 2  # neither the refused and the empty patch nor the broken task needs a sandbox
    lists = {name: summary[f"{name}_ids"] for name in ("resolved", "unresolved", "empty_patch", "error")}
    assert lists == {
        "resolved": ["right"],
        "unresolved": ["broken", "wrong"],
        "empty_patch": ["none"],
        "error": ["homeless"],
    }
    assert (summary["unknown_ids"], summary["incomplete_ids"]) == (["unknown"], ["other"])
    assert summary == json.loads((out / "summary.json").read_text())
    report = json.loads((out / "wrong" / "report.json").read_text())["wrong"]
    assert report["outcome"] == "unresolved"
    assert report["tests_status"]["FAIL_TO_PASS"] == {
        "success": ["tests/test_hidden.py::test_add"],
        "failure": ["tests/test_hidden.py::test_add_lists", "tests/test_more.py::test_add_more"],
    }
    refused = json.loads((out / "broken" / "report.json").read_text())["broken"]
    assert (refused["patch_successfully_applied"], refused["resolved"]) == (False, False)
    assert "names no file" in refused["evidence"]
    assert "there is no rule 'x'" in summary["failure_reasons"]["homeless"]

    again, started = run(tasks)
    assert again == {
        **summary,
        "instances": {**summary["instances"], "homeless": again["instances"]["homeless"]},
    }
    assert not started
    changed = [dataclasses.replace(task, problem="another text") for task in tasks]
    assert len(run(changed)[1]) == 2
