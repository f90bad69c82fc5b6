"""The data card of a file of admitted tasks, and its check."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hone.curate.card import check_card, make_card, read_card
from hone.curate.journal import Journal
from hone.curate.record import Reason, Record, Report, with_proof
from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash, save
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import load_all
from hone.types import Task
from hone.view.web.card_page import card_page
from tests.view.pages import read

TASKS = generate(TasksSettings(train=4, test=0, unseen=0)).train
VERSIONS = {"python": "3.11.7", "pytest": "8.3.0", "kernel": "6.1.0"}


def admitted(task: Task) -> Record:
    controls = task.checks.controls
    return Record(
        task_id=task.id,
        content=content_hash(task),
        gold=(True, True, True),
        empty=(False, False, False),
        varied=("hash_seed", "order"),
        tests=len(task.checks.named_tests),
        controlled=len({test for control in controls for test in control.tests}),
        controls=controls,
        elapsed_s=2.0,
        finished_at=1_700_000_100.0,
        versions=VERSIONS,
    )


def refused(task: Task, reason: Reason, detail: str, **flaky: str) -> Record:
    return Record(task_id=task.id, content=content_hash(task), reason=reason, detail=detail, flaky=flaky)


@pytest.fixture
def report() -> Report:
    records = [
        admitted(TASKS[0]),
        admitted(TASKS[1]),
        refused(TASKS[2], Reason.FLAKY, "flaky: <b>t</b> changes with the order of tests", t="order"),
        refused(TASKS[3], Reason.UNSOLVABLE, "unsolvable: the gold patch never passes t"),
    ]
    journal = Journal(None, {})
    for record in records:
        journal.put(record.task_id, record.to_json())
    return Report(journal=journal, ids=tuple(record.task_id for record in records))


@pytest.fixture
def card(report: Report) -> dict[str, Any]:
    made = make_card(
        report, source="all.jsonl", file="good.jsonl", settings={"sandbox.memory_mib": 512}, repeats=3
    )
    return json.loads(json.dumps(made))


@pytest.fixture
def tasks(report: Report, tmp_path: Path) -> list[Task]:
    save(with_proof(TASKS, report), tmp_path / "good.jsonl")
    return load_all(tmp_path / "good.jsonl")


def test_card_counts_reasons_controls_and_causes(card: dict[str, Any]) -> None:
    controls = sum(len(task.checks.controls) for task in TASKS[:2])
    assert controls > 0
    assert card["counts"] == {
        "tasks": 4,
        "admitted": 2,
        "refused": {"flaky": 1, "unsolvable": 1},
        "tests": sum(len(task.checks.named_tests) for task in TASKS[:2]),
        "controlled": sum(each["controlled"] for each in card["tasks"]),
        "controls": {"value": controls},
        "flaky": {"order": 1},
    }
    assert card["versions"] == [{**VERSIONS, "tasks": 2}]
    assert [run["order"] for run in card["runs"]] == [0, 1, 0]
    assert card["times"]["finished"] == "2023-11-14T22:15:00+00:00"


def test_file_that_the_card_describes_has_no_problem(card: dict[str, Any], tasks: list[Task]) -> None:
    assert check_card(card, tasks) == []


def change(task: Task, **checks: Any) -> Task:
    return dataclasses.replace(task, checks=dataclasses.replace(task.checks, **checks))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (lambda one, two: [one], f"task {TASKS[1].id} is missing"),
        (lambda one, two: [one, two, TASKS[2]], f"task {TASKS[2].id} is refused"),
        (lambda one, two: [one, two, dataclasses.replace(two, id="new")], "task new is not in the card"),
        (lambda one, two: [one, one, two], f"task {TASKS[0].id} is not in the card, or is there twice"),
        (lambda one, two: [one, dataclasses.replace(two, problem="?")], "has another problem, environment"),
        (lambda one, two: [one, change(two, gold_patch="")], "has another problem, environment or checks"),
        (lambda one, two: [one, change(two, controls=())], "has other controls, excused tests or"),
        (lambda one, two: [one, change(two, excused=("t",))], "has other controls, excused tests or"),
        (lambda one, two: [one, dataclasses.replace(two, metadata={})], "or another proof"),
    ],
)
def test_changed_file_is_named(changed: Any, problem: str, card: dict[str, Any], tasks: list[Task]) -> None:
    (found,) = check_card(card, changed(*tasks))
    assert problem in found


def test_counts_that_do_not_follow_from_the_tasks_are_named(card: dict[str, Any], tasks: list[Task]) -> None:
    card["counts"]["refused"] = {}
    (found,) = check_card(card, tasks)
    assert found == ("the card counts refused as {}, but its own tasks give {'flaky': 1, 'unsolvable': 1}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "it is not JSON"), ("[]", "it has no schema"), ('{"schema": 1}', "it has no counts, tasks")],
)
def test_other_files_are_not_cards(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(TaskError, match=problem):
        read_card(tmp_path / "card.json")


def test_card_of_another_schema_is_refused(card: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps({**card, "schema": 99}))
    with pytest.raises(TaskError, match="has the schema 99"):
        read_card(tmp_path / "card.json")


def test_page_shows_the_card_and_escapes_what_tasks_say(card: dict[str, Any]) -> None:
    page = read(card_page(card, "good.card.json"))
    for text in (
        "2 of 4",
        "hone tasks validate --check good.card.json good.jsonl",
        "flaky: <b>t</b> changes with the order of tests",
        "Python 3.11.7, pytest 8.3.0, kernel 6.1.0",
        "reversed",
        TASKS[0].id,
    ):
        assert text in page.text, text
    assert "good.card.json" in page.links


def test_page_of_a_card_without_admitted_tasks_is_complete(report: Report) -> None:
    nothing = Report(journal=Journal(None, {}), ids=())
    card = make_card(nothing, source="s", file="f", settings={}, repeats=1)
    assert "0 of 0" in read(card_page(card, "f.card.json")).text
