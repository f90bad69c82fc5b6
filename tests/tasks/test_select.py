"""Tasks are chosen by repository, id, difficulty and length, and a selection names existing ones only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows
from hone.tasks.formats import FORMATS, save
from hone.tasks.settings import SelectSettings, TasksSettings
from hone.tasks.sources import load_splits, read_ids, select
from hone.types import Task

REPOSITORIES = ("django/django", "sympy/sympy", "psf/requests")
DIFFICULTY = ("<15 min fix", "1-4 hours")


def make(number: int = 12) -> tuple[Task, ...]:
    rows = [
        {
            "instance_id": f"{REPOSITORIES[i % 3].replace('/', '__')}-{i}",
            "repo": REPOSITORIES[i % 3],
            "base_commit": f"{i:08x}",
            "problem_statement": "x" * (10 + i),
            "FAIL_TO_PASS": ["t.py::t"],
            "difficulty": DIFFICULTY[i % 2],
        }
        for i in range(number)
    ]
    return import_rows(rows, FORMATS["swe-bench"]).tasks


TASKS = make()


def numbers(tasks: Sequence[Task]) -> list[int]:
    return [int(task.id.rpartition("-")[2]) for task in tasks]


def test_default_selects_all_tasks_in_order() -> None:
    assert select(TASKS, SelectSettings()) == TASKS
    assert select((), SelectSettings(limit=3)) == ()


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({"repositories": ("sympy/sympy",)}, [1, 4, 7, 10]),
        ({"repositories": ("sympy/sympy", "django/django"), "limit": 3}, [0, 1, 3]),
        ({"difficulty": ("1-4 hours",)}, [1, 3, 5, 7, 9, 11]),
        ({"min_problem_chars": 12, "max_problem_chars": 14}, [2, 3, 4]),
        ({"repositories": ("sympy/sympy",), "difficulty": ("1-4 hours",), "max_problem_chars": 12}, [1]),
    ],
)
def test_tasks_are_selected_by_properties(chosen: dict[str, Any], wanted: list[int]) -> None:
    assert numbers(select(TASKS, SelectSettings(**chosen))) == wanted


def test_id_list_has_lines_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("# of Django\ndjango__django-3\n\n  django__django-0  # the first\r\ndjango__django-3\n")
    assert read_ids(file) == ["django__django-3", "django__django-0"]
    assert numbers(select(TASKS, SelectSettings(ids_file=file))) == [0, 3]
    file.write_text("# none\n")
    with pytest.raises(TaskError, match="lists no ids"):
        read_ids(file)
    with pytest.raises(TaskError, match=r"cannot read ids from .*: No such file"):
        read_ids(tmp_path / "absent")


def test_unknown_name_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("django__django-0\ndjango_django-3\nq1\nq2\nq3\nq4\nq5\n")
    with pytest.raises(TaskError) as caught:
        select(TASKS, SelectSettings(ids_file=file))
    meant = "django_django-3 (did you mean django__django-3?)"
    said = f"there is no task for {file}: {meant}, q1, q2, q3, q4, and 1 more"
    assert str(caught.value) == said
    with pytest.raises(TaskError, match=r"no task of sympy/simpy \(did you mean sympy/sympy\?\)"):
        select(TASKS, SelectSettings(repositories=("sympy/simpy",)))
    with pytest.raises(TaskError, match="no task of the difficulty hard"):
        select(TASKS, SelectSettings(difficulty=("hard",)))
    with pytest.raises(TaskError, match="none of the 12 tasks is selected"):
        select(TASKS, SelectSettings(min_problem_chars=100))


def test_difficulty_is_read_from_task_or_row() -> None:
    (task, *_) = TASKS
    said = dataclasses.replace(task, metadata={"difficulty": 3})
    assert select([task, said], SelectSettings(difficulty=("3",))) == (said,)
    row = {
        "question_id": "k",
        "question": "q",
        "solution": "s",
        "test": "def test_a(): ...",
        "gpt_difficulty": "easy",
    }
    (kodcode,) = import_rows([row], FORMATS["kodcode"]).tasks
    assert select([kodcode, task], SelectSettings(difficulty=("easy",))) == (kodcode,)


@settings(deadline=None)
@given(st.integers(), st.integers(1, 15))
def test_seed_permutes_the_tasks(seed: int, limit: int) -> None:
    shuffled = select(TASKS, SelectSettings(seed=seed))
    assert sorted(numbers(shuffled)) == sorted(numbers(TASKS))
    assert select(TASKS, SelectSettings(seed=seed, limit=limit)) == shuffled[:limit]


def test_seeds_differ() -> None:
    assert len({select(TASKS, SelectSettings(seed=seed))[0].id for seed in range(20)}) > 3


def test_run_uses_selected_tasks_in_their_sets(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    sets = ("train", "train", "test")
    save(
        [dataclasses.replace(t, metadata={**t.metadata, "split": sets[i % 3]}) for i, t in enumerate(TASKS)],
        file,
    )
    chosen = SelectSettings(difficulty=("<15 min fix",), seed=1)
    splits = load_splits(TasksSettings(source=str(file), select=chosen))
    assert sorted(numbers(splits.train)) == [0, 4, 6, 10]
    assert sorted(numbers(splits.test)) == [2, 8]
    assert numbers(splits.train) == numbers(load_splits(TasksSettings(source=str(file), select=chosen)).train)


def test_curriculum_can_be_selected() -> None:
    small = {"train": 6, "test": 2, "unseen": 1}
    whole = load_splits(TasksSettings(**small))
    part = load_splits(TasksSettings(**small, select=SelectSettings(limit=3)))
    assert (part.train, part.test) == (whole.train[:3], ())


def test_published_list_is_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_ids(Path("django-train-201"))) == 201
    monkeypatch.chdir(tmp_path)
    Path("django-train-201").write_text("mine\n")
    assert read_ids(Path("django-train-201")) == ["mine"]


def test_one_time_limit_replaces_those_of_all_tasks(tmp_path: Path) -> None:
    save(TASKS, tmp_path / "tasks.jsonl")
    chosen = TasksSettings(source=str(tmp_path / "tasks.jsonl"), timeout_s=300)
    assert {task.checks.timeout_s for task in load_splits(chosen).train} == {300.0}
    assert {task.checks.timeout_s for task in TASKS} == {1800.0}
