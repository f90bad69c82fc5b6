"""The curricula beside the default one: more families, two bugs, more files, three edits."""

import collections
import itertools
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hone.config import ConfigError, resolve
from hone.tasks.curriculum import TRAINED_NAMING, families, generate
from hone.tasks.curriculum.bug import Bug, Draw, Shape
from hone.tasks.curriculum.build import Rejected, build
from hone.tasks.curriculum.checks import load
from hone.tasks.curriculum.layout import Plan
from hone.tasks.formats import content_hash, to_line
from hone.tasks.settings import TasksSettings
from hone.tasks.splits import Splits, check_disjoint
from hone.tasks.workspace import tree
from hone.types import Task

EDITS = {"more_families": 1, "two_bugs": 2, "more_files": 1, "three_edits": 3}

Fix = dict[str, Any]
Modules = Mapping[str, str]


@pytest.fixture(scope="module", params=EDITS)
def curriculum(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def splits(curriculum: str) -> Splits:
    return generate(TasksSettings(curriculum=curriculum, train=48, validation=6, test=24, unseen=8))


def every_task(splits: Splits) -> list[Task]:
    return [task for _, tasks in splits.named() for task in tasks]


def modules_of(task: Task) -> dict[str, str]:
    """Return the modules beside the tests: name -> source."""
    return {
        path.removesuffix(".py"): text for path, text in tree(task).items() if re.match(r"\w+\.py$", path)
    }


def edits_of(task: Task) -> list[list[Fix]]:
    """Return the candidates for each edit: the right one and the wrong ones that follow it."""
    edits: list[list[Fix]] = []
    for fix in task.metadata["fixes"]:
        if fix["right"]:
            edits.append([])
        edits[-1].append(fix)
    return edits


def after(modules: Modules, fixes: Iterable[Fix]) -> dict[str, str]:
    """Return the modules after the fixes, one after the other."""
    made = dict(modules)
    for fix in fixes:
        module = fix["path"].removesuffix(".py")
        lines = made[module].splitlines()
        lines[fix["line"] - 1] = fix["code"]
        made[module] = "\n".join(lines) + "\n"
    return made


UNITTEST = """
class TestCase:
    def assertEqual(self, one, other):
        assert one == other
"""


def resolves(task: Task, modules: Modules) -> bool:
    """Return whether every hidden test passes."""
    everything = {**modules, "unittest": UNITTEST, "hidden": task.checks.test_files["tests/test_hidden.py"]}
    try:
        tests = load(everything, "hidden")["Tests"]()
        for name in dir(tests):
            if name.startswith("test_"):
                getattr(tests, name)()
    except Exception:
        return False
    return True


def test_same_settings_give_the_same_tasks(curriculum, splits):
    again = generate(TasksSettings(curriculum=curriculum, train=8, test=24, unseen=8))
    assert [to_line(task) for task in again.test] == [to_line(task) for task in splits.test]
    assert [to_line(task) for task in again.train] == [to_line(task) for task in splits.train[:8]]


def test_sets_have_their_sizes_and_families(curriculum, splits):
    trained, unseen = ({family.__name__ for family in each} for each in families(curriculum))
    assert [len(tasks) for _, tasks in splits.named()] == [48, 6, 24, 8]
    check_disjoint(splits)
    assert len({content_hash(task) for task in every_task(splits)}) == 86
    for tasks, expected in ((splits.train, trained), (splits.test, trained), (splits.test_unseen, unseen)):
        assert {name for task in tasks for name in task.metadata["family"].split("+")} == expected


def test_each_edit_has_a_right_fix_and_three_wrong_ones(curriculum, splits):
    for task in every_task(splits):
        edits = edits_of(task)
        assert len(edits) == EDITS[curriculum]
        assert min(map(len, edits)) >= 4
        commands = [fix["command"] for edit in edits for fix in edit if fix["right"]]
        assert len(set(commands)) == len(edits)


def test_edits_of_a_module_are_listed_from_its_last_line_upwards(splits):
    for task in every_task(splits):
        right = [candidates[0] for candidates in edits_of(task)]
        for _, fixes in itertools.groupby(right, key=lambda fix: fix["path"]):
            lines = [fix["line"] for fix in fixes]
            assert lines == sorted(lines, reverse=True)


def test_bug_that_a_part_of_the_fix_resolves_makes_no_task():
    def half_shown(draw: Draw) -> Bug:
        code = "def price(tax, fee):\n    if tax > fee:\n        return tax@fee\n    return fee@2"
        shape = Shape(code, ((7, 3), (9, 4)))
        return Bug(
            shape=shape, bad=" - ", right=" + ", wrong=(" * ", " % ", " / "), actual="it", expected="it"
        )

    for seed in range(20):
        with pytest.raises(Rejected, match="a part of the fix"):
            build(Plan(modules=((half_shown,),)), random.Random(seed), "id", "train", 2)


def test_texts_for_the_model_are_short(splits):
    for task in every_task(splits):
        assert max(text.count("\n") for text in modules_of(task).values()) <= 12
        assert 8 <= len(task.problem.split()) <= 60, task.problem


def test_hidden_tests_and_fixes_are_in_no_commit(splits):
    for task in every_task(splits):
        assert "tests/test_hidden.py" not in tree(task)
        texts = [text or "" for commit in task.environment.history for text in commit.files.values()]
        assert not any(fix["code"] in texts for fix in task.metadata["fixes"] if fix["right"])
        assert not resolves(task, modules_of(task))


@given(curriculum=st.sampled_from(list(EDITS)), seed=st.integers(0, 10**6), variety=st.integers(2, 12))
def test_only_all_right_edits_together_resolve(curriculum, seed, variety):
    settings = TasksSettings(curriculum=curriculum, seed=seed, variety=variety, train=0, test=1, unseen=1)
    for task in every_task(generate(settings)):
        modules, edits = modules_of(task), edits_of(task)
        right = [candidates[0] for candidates in edits]
        assert resolves(task, after(modules, right))
        for count in range(len(right)):
            for some in itertools.combinations(right, count):
                assert not resolves(task, after(modules, some))
        for position, candidates in enumerate(edits):
            for wrong in candidates[1:]:
                fixes = [*right[:position], wrong, *right[position + 1 :]]
                assert not resolves(task, after(modules, fixes)), (task.metadata, wrong)


def changed_lines(task: Task, sign: str) -> list[str]:
    """Return the lines that the gold patch adds (+) or removes (-)."""
    lines = task.checks.gold_patch.splitlines()
    return [line for line in lines if line.startswith(sign) and not line.startswith(sign * 3)]


@pytest.mark.parametrize("curriculum", ["more_families"], indirect=True)
def test_fixes_of_the_additional_families_write_a_name_of_the_issue(splits):
    naming = {family.__name__ for family in TRAINED_NAMING}
    tasks = [task for task in every_task(splits) if task.metadata["family"] in naming]
    assert {task.metadata["family"] for task in tasks} == naming
    for task in tasks:
        before, after = (re.findall(r"\w+", *changed_lines(task, sign)) for sign in "-+")
        (written,) = collections.Counter(after) - collections.Counter(before)
        assert re.search(rf"\b{written}\b", task.problem), (written, task.problem)


@pytest.mark.parametrize("curriculum", ["two_bugs"], indirect=True)
def test_issue_and_patch_of_two_bugs_name_both(splits):
    for task in every_task(splits):
        functions = {test.split("::test_")[1].rpartition("_")[0] for test in task.checks.fail_to_pass}
        assert len(functions) == len(task.metadata["family"].split("+")) == 2
        lines = task.problem.splitlines()
        assert [sum(bool(re.search(rf"\b{name}\b", line)) for line in lines) for name in functions] == [1, 1]
        assert len(changed_lines(task, "+")) == 2
    paths = {task.checks.gold_patch.count("+++ b/") for task in splits.train}
    assert paths == {1, 2}  # of one module, and of two


@pytest.mark.parametrize("curriculum", ["more_files"], indirect=True)
def test_issue_among_more_files_does_not_name_the_module(splits):
    for task in every_task(splits):
        module, function, *_ = task.metadata["names"]
        modules = modules_of(task)
        assert 4 <= len(modules) <= 8
        assert not any(re.search(rf"\b{name}\.py", task.problem) for name in modules)
        assert re.search(rf"\b{function}\b", task.problem)
        assert task.metadata["search"] == [function]
        naming = {name for name, text in modules.items() if re.search(rf"\b{function}\b", text)}
        assert module in naming
        assert len(naming) >= 2
        wrong_file = task.metadata["fixes"][1]["path"]
        assert wrong_file == f"{min(naming - {module})}.py"


@pytest.mark.parametrize("curriculum", ["three_edits"], indirect=True)
def test_three_edits_change_three_lines_of_a_function(splits):
    for task in every_task(splits):
        assert len(changed_lines(task, "+")) == len(changed_lines(task, "-")) == 3
        assert "in three places" in task.problem


def test_curriculum_of_a_file_of_tasks_is_refused(tmp_path: Path):
    with pytest.raises(ValidationError, match=r"'two_bugs' has no effect on the tasks of tasks\.jsonl"):
        TasksSettings(source="tasks.jsonl", curriculum="two_bugs")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[tasks]\nsource = "tasks.jsonl"\ncurriculum = "two_bugs"\n')
    with pytest.raises(ConfigError, match="remove it"):
        resolve(recipe)
