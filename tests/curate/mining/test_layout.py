import pytest

from hone.curate.files import Kind, kind_of, matches
from hone.curate.mining.candidates import Reason, select, walk
from hone.curate.mining.layout import configured_tests, find_test_files
from hone.curate.mining.settings import MiningSettings
from hone.tasks.configuration import test_globs as globs_of
from hone.tasks.errors import TaskError
from hone.tasks.repository import Repository
from tests.curate.mining.projects import BASE, FIXED, Project


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("checks/a/b.py", "checks"),
        ("checks/a/b.py", "checks/*"),
        ("pkg/spec_a.py", "spec_*.py"),
        ("pkg/spec_a.py", "*/spec_*.py"),
        ("selftest.py", "selftest.py"),
    ],
)
def test_glob_of_tests_makes_a_file_a_test(path, pattern):
    assert matches(path, pattern)
    assert (kind_of(path), kind_of(path, [pattern])) == (Kind.SOURCE, Kind.TEST)


@pytest.mark.parametrize(("path", "pattern"), [("pkg/checks.py", "checks"), ("pkg/a.py", "other/*.py")])
def test_glob_of_other_files_changes_no_kind(path, pattern):
    assert not matches(path, pattern)


def test_script_of_tests_in_the_root_is_a_test():
    assert (kind_of("test.py"), kind_of("package/test.py")) == (Kind.TEST, Kind.SOURCE)


@pytest.mark.parametrize(
    ("files", "globs"),
    [
        ({"pytest.ini": "[pytest]\npython_files = check_*.py\n"}, ("*/check_*.py", "check_*.py")),
        (
            {
                "pyproject.toml": '[tool.pytest.ini_options]\npython_files = "*.py"\n'
                'testpaths = ["spec", "self.py"]'
            },
            ("spec/*.py", "self.py"),
        ),
        ({"pytest.ini": "[pytest]\npython_files = *.py test*.py\n"}, ()),
        ({"setup.cfg": "[metadata]\nname = x\n"}, ()),
    ],
)
def test_globs_follow_the_configuration_of_pytest(files, globs):
    assert globs_of(files) == globs


def test_configuration_that_cannot_be_read_is_an_error():
    with pytest.raises(TaskError, match=r"pytest\.ini cannot be read"):
        globs_of({"pytest.ini": "no section\n"})


COMMANDS = {
    "tox.ini": "[testenv]\ncommands =\n    coverage run --source=shop shop/selftest.py {posargs}\n",
    ".github/workflows/ci.yml": "run: |\n  python -m unittest discover -s checks -p 'check_*.py'\n",
    "setup.py": 'from setuptools import setup\n\nsetup(test_suite="suite.all")\n',
    "Makefile": "lint:\n\truff check latest.py\n\ntest:\n\tpython -m unittest discover -p test*.py\n",
}


def test_commands_of_the_project_name_its_tests(tmp_path):
    project = Project(tmp_path / "shop", {**BASE, **COMMANDS})
    repository = Repository.open(project.folder)
    assert set(configured_tests(repository, "HEAD")) == {
        "shop/selftest.py", "checks/check_*.py", "checks/*/check_*.py", "suite/all", "suite/all.py",
    }  # fmt: skip


def test_fix_with_tests_in_a_named_file_is_a_candidate(tmp_path):
    project = Project(tmp_path / "shop", {**BASE, "shop/selftest.py": "def test_it(): ...\n"})
    tests = "from shop import total\n\ndef test_it():\n    assert total([1]) == 1\n"
    project.commit("Fix total", {"shop/prices.py": FIXED, "shop/selftest.py": tests})
    repository = Repository.open(project.folder)
    commits = walk(repository)
    assert select(repository, commits, MiningSettings()).skipped == {Reason.NO_TESTS: 1}
    (found,) = select(repository, commits, MiningSettings(tests=("shop/selftest.py",))).candidates
    assert found.message == "Fix total"


def test_tests_are_found_wherever_they_lie(tmp_path):
    case = "import unittest\n\nclass A(unittest.TestCase):\n    def test_it(self):\n        pass\n"
    project = Project(
        tmp_path / "shop",
        {
            **BASE,
            "shop/tests/test_case.py": case,
            "shop/test_beside.py": "async def test_it(): ...\n",
            "checks/all.py": case,
            "tests/conftest.py": "LIMIT = 3\n",
            "tests/data/test_data.txt": "def test_it\n",
            "shop/testing_tools.py": "def test_it(): ...\n",
        },
    )
    repository = Repository.open(project.folder)
    found = find_test_files(repository, repository.commit("HEAD"), ["checks"])
    assert found.pytest == ("shop/test_beside.py", "tests/test_prices.py")
    assert found.unittest == ("checks/all.py", "shop/tests/test_case.py")
    assert found.paths == tuple(sorted((*found.pytest, *found.unittest)))
