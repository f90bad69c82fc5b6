"""Division into sets: nothing that a model could have seen almost word for word is in two of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.tasks.division import divide, write_sets
from hone.tasks.errors import TaskError
from hone.tasks.sources import load_all
from hone.tasks.splits import Splits, check_disjoint
from hone.types import Checks, Environment, Task

COMMIT = "1" * 40


def seeded(number: int, file: str, function: str, *tests: str) -> Task:
    """A bug seeded into a function."""
    environment = Environment(image="repo:/r", repo="me/it", commit=COMMIT)
    checks = Checks(
        fail_to_pass=tests or (f"t.py::t{number}",),
        pass_to_pass=(),
        test_files={},
        gold_patch=f"--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-a\n+b{number}\n",
    )
    return Task(
        id=f"s-{number}",
        problem=f"Problem {number}.",
        environment=environment,
        checks=checks,
        source="mutated",
        metadata={"functions": [function]},
    )


def places(tasks: Sequence[Task]) -> set[tuple[str, str]]:
    return {
        (task.checks.gold_patch.split()[1], name) for task in tasks for name in task.metadata["functions"]
    }


def ids(splits: Splits) -> dict[str, list[str]]:
    return {name: [task.id for task in tasks] for name, tasks in splits.named()}


def test_file_is_in_one_set() -> None:
    tasks = [seeded(number, f"m{number % 5}.py", f"f{number}") for number in range(20)]
    division = divide(tasks)
    assert (division.level, division.groups) == ("file", 5)
    files = [{place[0] for place in places(division.splits.train)}]
    files.append({place[0] for place in places(division.splits.test)})
    assert not files[0] & files[1]
    assert len(division.splits.test) == 4


def test_function_is_in_one_set_where_there_is_one_file() -> None:
    tasks = [seeded(number, "only.py", f"f{number % 7}") for number in range(21)]
    division = divide(tasks, test=0.3)
    assert division.level == "function"
    assert not places(division.splits.train) & places(division.splits.test)
    assert len(division.splits.test) == 6


def test_tasks_of_equal_failing_tests_stay_together() -> None:
    tasks = [seeded(number, f"m{number}.py", "f", f"t.py::t{number // 2}") for number in range(10)]
    division = divide(tasks, test=0.4)
    tests = [
        {task.checks.fail_to_pass for task in chosen}
        for chosen in (division.splits.train, division.splits.test)
    ]
    assert len(division.splits.test) == 4
    assert not tests[0] & tests[1]


def test_family_stays_together() -> None:
    tasks = [seeded(number, f"m{number}.py", "f") for number in range(12)]
    tasks = [
        dataclasses.replace(task, metadata={**task.metadata, "family": f"family {number % 3}"})
        for number, task in enumerate(tasks)
    ]
    division = divide(tasks, test=0.34)
    families = [
        {task.metadata["family"] for task in chosen}
        for chosen in (division.splits.train, division.splits.test)
    ]
    assert (division.level, len(families[1])) == ("family", 1)
    assert not families[0] & families[1]


def test_seed_decides_the_sets() -> None:
    tasks = [seeded(number, f"m{number}.py", "f") for number in range(30)]
    first, again, other = (divide(tasks, validation=0.1, seed=seed) for seed in (1, 1, 2))
    assert ids(first.splits) == ids(again.splits) != ids(other.splits)
    assert [len(first.splits.test), len(first.splits.validation)] == [6, 3]
    assert all(task.metadata["split"] == name for name, chosen in first.splits.named() for task in chosen)


def test_tasks_of_one_function_cannot_be_divided() -> None:
    with pytest.raises(TaskError, match=r"the 5 tasks cannot be divided .* Make more tasks"):
        divide([seeded(number, "only.py", "f") for number in range(5)])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40),
    st.floats(0.05, 0.6),
    st.integers(0, 5),
)
def test_sets_are_disjoint_and_complete(bugs: list[tuple[int, int, int]], test: float, seed: int) -> None:
    tasks = [
        seeded(number, f"m{file}.py", f"f{function}", f"t.py::t{name}")
        for number, (file, function, name) in enumerate(bugs)
    ]
    try:
        splits = divide(tasks, test=test, seed=seed).splits
    except TaskError:
        return
    check_disjoint(splits)
    assert splits.train
    assert splits.test
    assert sorted(name for chosen in ids(splits).values() for name in chosen) == sorted(t.id for t in tasks)


def test_bugs_of_one_commit_are_in_two_sets_unless_their_function_is_one() -> None:
    first, other, same = seeded(0, "a.py", "f"), seeded(1, "a.py", "g"), seeded(2, "a.py", "f")
    check_disjoint(Splits(train=(first,), test=(other,)))
    with pytest.raises(TaskError, match="s-2 \\(test\\) has the function of s-0"):
        check_disjoint(Splits(train=(first,), test=(same,)))
    alike = seeded(3, "b.py", "h", "t.py::t0")
    with pytest.raises(TaskError, match="has the failing tests of s-0"):
        check_disjoint(Splits(train=(first,), test=(alike,)))


def test_sets_are_read_back(tmp_path: Path) -> None:
    division = divide([seeded(number, f"m{number}.py", "f") for number in range(10)])
    files = write_sets(division.splits, tmp_path)
    assert {name: path.name for name, path in files.items()} == {"train": "train.jsonl", "test": "test.jsonl"}
    assert tuple(load_all(files["test"])) == division.splits.test
