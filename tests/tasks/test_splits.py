"""No task is trained on and measured: by id, by content, by the commit of its repository."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows
from hone.tasks.formats import FORMATS, origin, save
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import load_splits
from hone.tasks.splits import Splits, check_disjoint
from hone.types import Environment, Task

COMMIT = "95280573e4a1b2c3d4e5f60718293a4b5c6d7e8f"
ROW: dict[str, Any] = {
    "instance_id": "pandas-dev__pandas-1",
    "repo": "pandas-dev/pandas",
    "base_commit": COMMIT,
    "problem_statement": "It is broken.",
    "FAIL_TO_PASS": ["t.py::t"],
}


def a_task(name: str = "swe-bench", **changes: Any) -> Task:
    (task,) = import_rows([{**ROW, **changes}], FORMATS[name]).tasks
    return task


def other(task: Task, **changes: Any) -> Task:
    """The same commit, another problem."""
    return dataclasses.replace(task, id=f"{task.id}-other", problem="Something else.", **changes)


def test_commit_is_in_one_set_only() -> None:
    task = a_task()
    check_disjoint(Splits(train=(task, other(task))))
    for splits in (
        Splits(train=(task,), test=(other(task),)),
        Splits(train=(task,), validation=(other(task),)),
        Splits(validation=(task,), test_unseen=(other(task),)),
    ):
        with pytest.raises(
            TaskError, match=r"pandas-1-other \(\w+\) has the repository and commit of pandas-dev__pandas-1"
        ):
            check_disjoint(splits)


def test_overlap_is_reported_once_per_task() -> None:
    tasks = tuple(a_task(instance_id=f"pandas-dev__pandas-{i}", base_commit=f"{i:040x}") for i in range(12))
    with pytest.raises(TaskError) as caught:
        check_disjoint(Splits(train=tasks, test=tasks))
    said = str(caught.value)
    assert said.count("has the id of") == 5
    assert "; and 7 more. Remove them from one set, or set tasks.allow_overlap = true" in said


def test_commit_has_one_name_in_every_data_set() -> None:
    swe = a_task()
    smith = a_task(
        "swe-smith",
        instance_id="pandas-dev__pandas.95280573.bug",
        repo="swesmith/pandas-dev__pandas.95280573",
        image_name="me/x",
        base_commit=None,
        problem_statement="A bug was put in.",
    )
    local = other(
        swe, environment=Environment(image="repo:/r/pandas", repo="Pandas-Dev/pandas", commit=COMMIT)
    )
    for train in (smith, local):
        with pytest.raises(TaskError, match="has the repository and commit of"):
            check_disjoint(Splits(train=(train,), test=(swe,)))


def test_unknown_or_different_commits_do_not_clash() -> None:
    swe = a_task()
    for environment in (
        dataclasses.replace(swe.environment, commit=""),
        dataclasses.replace(swe.environment, repo=""),
        dataclasses.replace(swe.environment, repo="numpy/numpy"),
        dataclasses.replace(swe.environment, commit=f"{COMMIT}^"),  # the commit before it
    ):
        check_disjoint(Splits(train=(other(swe, environment=environment),), test=(swe,)))


def test_unnamed_local_repository_is_known_by_its_path() -> None:
    environment = Environment(image="repo:/r/it", commit=COMMIT)
    assert origin(environment) == ("repo:/r/it", COMMIT[:8])
    assert origin(Environment(image="host")) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 5))
def test_sets_pass_exactly_when_commits_are_disjoint(commits: list[tuple[int, int]], cut: int) -> None:
    tasks = [
        a_task(instance_id=f"i{i}", repo=f"o/{repo}", base_commit=f"{commit:040x}", problem_statement=f"p{i}")
        for i, (repo, commit) in enumerate(commits)
    ]
    tasks = [
        dataclasses.replace(t, environment=dataclasses.replace(t.environment, commit=f"{c:08x}"))
        for t, (_, c) in zip(tasks, commits, strict=True)
    ]
    splits = Splits(train=tuple(tasks[:cut]), test=tuple(tasks[cut:]))
    if set(commits[:cut]) & set(commits[cut:]):
        with pytest.raises(TaskError, match="overlap"):
            check_disjoint(splits)
    else:
        check_disjoint(splits)


def test_evaluation_file_is_the_test_set(tmp_path: Path) -> None:
    source, evaluation = tmp_path / "train.jsonl", tmp_path / "verified.jsonl"
    task = a_task()
    apart = a_task(instance_id="apart", base_commit="1" * 40, problem_statement="Apart.")
    save([task, dataclasses.replace(apart, id="was-test", problem="?", metadata={"split": "test"})], source)
    evaluation.write_text(json.dumps({**ROW, "instance_id": "apart", "base_commit": "2" * 40}) + "\n")
    splits = load_splits(TasksSettings(source=str(source), evaluation=evaluation))
    assert [[t.id for t in tasks] for tasks in (splits.train, splits.test)] == [
        ["pandas-dev__pandas-1"],
        ["apart"],
    ]

    evaluation.write_text(json.dumps({**ROW, "instance_id": "seen", "problem_statement": "Later."}) + "\n")
    with pytest.raises(
        TaskError, match=r"seen \(test\) has the repository and commit of pandas-dev__pandas-1 \(train\)"
    ):
        load_splits(TasksSettings(source=str(source), evaluation=evaluation))
    splits = load_splits(TasksSettings(source=str(source), evaluation=evaluation, allow_overlap=True))
    assert [t.id for t in splits.test] == ["seen"]


def test_curriculum_can_be_evaluated_on_a_file(tmp_path: Path) -> None:
    evaluation = tmp_path / "tasks.jsonl"
    save([a_task()], evaluation)
    splits = load_splits(TasksSettings(train=2, test=2, unseen=0, evaluation=evaluation))
    assert (len(splits.train), [t.id for t in splits.test]) == (2, ["pandas-dev__pandas-1"])


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [ROW, {**ROW, "instance_id": "b", "FAIL_TO_PASS": []}],
            r"row 2 \(b\): `FAIL_TO_PASS` names no test",
        ),
        ([ROW, ROW], "holds 1 rows twice"),
        ([], "holds no tasks"),
    ],
)
def test_unusable_row_of_a_run_is_an_error(tmp_path: Path, rows: list[Any], reason: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for each in (TasksSettings(source=str(file)), TasksSettings(train=1, evaluation=file)):
        with pytest.raises(TaskError, match=reason):
            load_splits(each)


def test_task_of_a_local_repository_needs_a_commit(tmp_path: Path) -> None:
    task = dataclasses.replace(a_task(), environment=Environment(image="repo:/r/it", repo="me/it"))
    save([task], tmp_path / "tasks.jsonl")
    with pytest.raises(TaskError, match="names no commit of /r/it"):
        load_splits(TasksSettings(source=str(tmp_path / "tasks.jsonl")))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_family_of_the_unseen_set_is_in_no_other_set(split: str) -> None:
    seen, unseen, without = (
        dataclasses.replace(a_task(), id=name, problem=name, environment=Environment(image="host"))
        for name in ("seen", "unseen", "without")
    )
    seen = dataclasses.replace(seen, metadata={"family": "off_by_one"})
    unseen = dataclasses.replace(unseen, metadata={"family": "off_by_one"})
    with pytest.raises(TaskError, match=r"unseen \(test_unseen\) is of the family off_by_one"):
        check_disjoint(Splits(**{split: (seen,), "test_unseen": (unseen,)}))
    other_family = dataclasses.replace(unseen, metadata={"family": "wrong_variable"})
    check_disjoint(Splits(**{split: (seen, without), "test_unseen": (other_family,)}))
