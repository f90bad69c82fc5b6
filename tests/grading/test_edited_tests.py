"""One edit of an existing test has one judgement, whatever task it is made in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hone.environment import parse_patch
from hone.grading.integrity import scan_patch
from hone.types import Checks, Environment, Task
from tests.grading.example import git, patch_of, write_tree

TEST = """import pytest

from stats import add


def test_password():
    assert add(1, 2) == 3


class TestMore:
    def test_zero(self):
        assert add(0, 0) == 0
"""
TREE = {
    "stats.py": "def add(a, b):\n    return a + b\n",
    "tests/test_old.py": TEST,
    "tests/cases.py": TEST,
    "src/stats/test_inside.py": TEST,
    "test.py": TEST,
}
NEW_TEST = """diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,3 @@
+import pytest
+
+def test_later(): pytest.skip("pass")
"""
SCRIPT = ": '>>>>> Start Test Output'\n{command}\n: '>>>>> End Test Output'\n"


def _task(image: str, **checks: object) -> Task:
    given = {"pass_to_pass": (), "test_files": {}, "gold_patch": "", **checks}
    environment = Environment(image=image, repo="me/stats")
    return Task(id="t", problem="", environment=environment, checks=Checks(**given), source="x")  # type: ignore[arg-type]


_NEW = ("tests/test_new.py::test_later",)
TASKS = {
    "host, with the text of the file": _task(
        "host",
        fail_to_pass=_NEW,
        test_files={path: text for path, text in TREE.items() if path != "stats.py"},
    ),
    "host, with other tests": _task("host", fail_to_pass=_NEW, test_files={"tests/test_new.py": TEST}),
    "repo, with a test patch": _task("repo:/x", fail_to_pass=_NEW, test_patch=NEW_TEST),
    "repo, named in the checks": _task(
        "repo:/x", fail_to_pass=_NEW, pass_to_pass=tuple(f"{path}::test_password" for path in TREE)
    ),
    "image, with a script of pytest": _task(
        "docker://x", fail_to_pass=_NEW, script=SCRIPT.format(command="pytest tests/test_old.py")
    ),
    "image, with names without files": _task(
        "docker://x", fail_to_pass=("test_later (stats.Tests)",), script=SCRIPT.format(command="./run.py")
    ),
    "image, with the names of R2E-Gym": _task("docker://x", fail_to_pass=("test_later",), rule="exact"),
}
FILES = [path for path in TREE if path != "stats.py"]
SILENCES = {
    "deleted": None,
    "emptied": "",
    "skipped as a module": TEST + "\npytest.skip('no', allow_module_level=True)\n",
    "marked as a module": TEST.replace("\n\n\ndef", "\n\npytestmark = pytest.mark.skip\n\n\ndef"),
    "a test marked": TEST.replace("def test_password", "@pytest.mark.xfail\ndef test_password"),
    "a class marked": TEST.replace("class TestMore", "@pytest.mark.skip\nclass TestMore"),
    "a test skipped within": TEST.replace("    assert add(1", "    pytest.skip()\n    assert add(1"),
    "a test without a body": TEST.replace("assert add(1, 2) == 3", "pass"),
    "a test that returns": TEST.replace("    assert add(1", "    return\n    assert add(1"),
    "a test that is true": TEST.replace("assert add(0, 0) == 0", "assert True"),
}
EDITS = {
    "another expectation": TEST.replace("== 3", "== 4"),
    "an expectation less": TEST.replace("class TestMore:\n    def test_zero(self):\n        assert", "x ="),
    "another name": TEST.replace("test_password", "test_sum"),
    "a new test": TEST + "\n\ndef test_more():\n    assert add(2, 2) == 4\n",
    "a new test that is skipped": TEST + "\n\n@pytest.mark.skip\ndef test_more():\n    pass\n",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("repository")
    git(tree, "init", "-q", "--template=")
    write_tree(tree, TREE)
    git(tree, "add", "-A", "-f")
    return tree


def judgements(patch: str) -> dict[str, bool]:
    """Return whether the patch is tampered, by kind of task."""
    return {kind: scan_patch(parse_patch(patch), task) is not None for kind, task in TASKS.items()}


@pytest.mark.parametrize("edit", SILENCES)
def test_silenced_test_is_tampered_in_every_kind_of_task(edit: str, repository: Path, tmp_path: Path) -> None:
    for file in FILES:
        patch = patch_of(repository, tmp_path, {file: SILENCES[edit]})
        assert judgements(patch) == dict.fromkeys(TASKS, True), file


@pytest.mark.parametrize("edit", EDITS)
def test_edited_test_is_honest_in_every_kind_of_task(edit: str, repository: Path, tmp_path: Path) -> None:
    for file in FILES:
        patch = patch_of(repository, tmp_path, {file: EDITS[edit]})
        assert judgements(patch) == dict.fromkeys(TASKS, False), file


@pytest.mark.parametrize(
    "new", [f"pytestmark = pytest.mark.skip\n{TEST}", TEST.replace("assert add", "pass #")]
)
def test_new_file_may_skip_its_own_tests(new: str, repository: Path, tmp_path: Path) -> None:
    for file in ("tests/test_mine.py", "tests/test_new.py"):
        patch = patch_of(repository, tmp_path, {file: new})
        assert judgements(patch) == dict.fromkeys(TASKS, False), file


def test_moved_test_is_tampered_in_every_kind_of_task(repository: Path, tmp_path: Path) -> None:
    for file in FILES:
        if file == "tests/cases.py":
            continue  # a patch that only renames does not show that it holds tests
        patch = patch_of(repository, tmp_path, {file: None, "old/words.py": TEST}, "-M")
        assert judgements(patch) == dict.fromkeys(TASKS, True), file


def test_edit_that_the_tasks_own_tests_make_is_honest(repository: Path, tmp_path: Path) -> None:
    for edit in ("deleted", "a test marked", "marked as a module", "a test without a body"):
        patch = patch_of(repository, tmp_path, {"tests/test_old.py": SILENCES[edit]})
        for task in TASKS.values():
            own = dataclasses.replace(task, checks=dataclasses.replace(task.checks, test_patch=patch))
            assert scan_patch(parse_patch(patch), own) is None, edit
    marked = SILENCES["a test marked"]
    task = _task("host", fail_to_pass=_NEW, test_files={"tests/test_old.py": marked})
    patch = patch_of(repository, tmp_path, {"tests/test_old.py": marked})
    assert scan_patch(parse_patch(patch), task) is None


def test_mark_of_another_test_is_no_excuse(repository: Path, tmp_path: Path) -> None:
    texts = {
        "tests/test_old.py": TEST.replace("class", "@pytest.mark.xfail\ndef test_b():\n    pass\n\n\nclass")
    }
    task = _task("host", fail_to_pass=_NEW, test_files=texts)
    for edit in ("a test marked", "a test without a body"):
        patch = patch_of(repository, tmp_path, {"tests/test_old.py": SILENCES[edit]})
        assert scan_patch(parse_patch(patch), task) is not None, edit


def test_test_file_that_is_replaced_without_its_tests_is_tampered(repository: Path, tmp_path: Path) -> None:
    removed = patch_of(repository, tmp_path, {"test.py": None})
    written = patch_of(repository, tmp_path, {"x.py": SILENCES["marked as a module"]}).replace(
        "x.py", "test.py"
    )
    assert judgements(removed + written) == dict.fromkeys(TASKS, True)
