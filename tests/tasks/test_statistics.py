"""Statistics of a data set, and the published lists that it is compared with."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows
from hone.tasks.published import (
    EVALUATION_SETS,
    INSTANCE_LISTS,
    evaluation_set,
    instance_list,
    statement_hash,
)
from hone.tasks.statistics import describe
from hone.types import Task

VERIFIED = evaluation_set("swe-bench-verified")
FIX = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1,2 +1,1 @@\n-a\n-b\n+c\n"


def make(number: int, **changes: Any) -> Task:
    row = {
        "instance_id": f"me__it-{number}",
        "repo": "me/it",
        "base_commit": "0" * 40,
        "problem_statement": f"Number {number} fails.",
        "patch": FIX.format("a.py"),
        "FAIL_TO_PASS": ["t.py::a", "t.py::b"][:number],
        "created_at": "2023-04-01T10:00:00Z",
    }
    (task,) = import_rows([{**row, **changes}]).tasks
    return task


def test_statistics_count_languages_years_and_sizes() -> None:
    tasks = [
        make(1),
        make(2, patch=FIX.format("a.rs") + FIX.format("b.rs"), created_at="2020-04-01 10:00:00"),
        make(3, patch="", created_at=None, FAIL_TO_PASS=["t.py::a"]),
    ]
    found = describe(tasks)
    assert found.tasks == 3
    assert found.languages == {"Python": 1, "Rust": 1, "unknown": 1}
    assert found.years == {"2020": 1, "2023": 1, "unknown": 1}
    assert found.repositories == {"me/it": 3}
    assert dataclasses.astuple(found.fail_to_pass) == (1, 1, pytest.approx(4 / 3), 2)
    assert dataclasses.astuple(found.patch_lines) == (0, 3, 3, 6)
    assert dataclasses.astuple(found.patch_files) == (0, 1, 1, 2)


def test_overlaps_are_found_by_id_commit_and_words() -> None:
    first, second = VERIFIED[0], VERIFIED[1]
    tasks = [
        make(1, instance_id=first.id),
        make(2, repo=second.repo, base_commit=second.commit),
        make(3, repo=second.repo, FAIL_TO_PASS=["t.py::a"]),
        make(4, repo="swesmith/astropy__astropy." + first.commit[:8], image_name="me/x"),
        make(5, problem_statement="Number  2\nFAILS."),
    ]
    overlap = describe(tasks).overlaps["swe-bench-verified"]
    assert overlap.ids == (first.id,)
    assert overlap.commits == ("me__it-2", "me__it-4")
    assert overlap.repositories == 3
    assert overlap.statements == ()
    assert statement_hash(tasks[1].problem) == statement_hash(tasks[4].problem)


def test_published_lists_are_whole() -> None:
    django = [task.id for task in VERIFIED if task.repo == "django/django"]
    train, test = instance_list("django-train-201"), instance_list("django-test-30")
    assert (len(train), len(test)) == (201, 30)
    assert sorted(train + test) == sorted(django)
    assert [len(evaluation_set(name)) for name in EVALUATION_SETS] == [500, 300]
    assert all(len(task.commit) == 40 for name in EVALUATION_SETS for task in evaluation_set(name))
    with pytest.raises(TaskError, match=next(iter(INSTANCE_LISTS))):
        instance_list("django-201")
