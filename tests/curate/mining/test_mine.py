"""Mining a small project, in real sandboxes."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hone.cli.mine import mine as command
from hone.curate.journal import Journal
from hone.curate.mining.candidates import CommitRejected, Reason, select, walk
from hone.curate.mining.mine import Report, Result, mine, read_results, report, require_one_bug
from hone.curate.mining.settings import MiningSettings
from hone.curate.runner import Runner
from hone.grading.settings import GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.repository import Repository
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import load_all
from hone.tasks.workspace import prepare
from tests.curate.mining.projects import BASE, FIXED, TESTS, Project

pytestmark = pytest.mark.sandbox

# No distribution: nothing has to be built or fetched to run its tests.
PLAIN = {name: text for name, text in BASE.items() if name != "pyproject.toml"}
TITLE = "Fix the total of three prices: the first one is left out"
FLAKY = """
import os

import pytest


@pytest.mark.parametrize("name", [os.urandom(8).hex()])
def test_of_luck(name): ...
"""


def make_project(folder: Path) -> Project:
    """One good fix, and commits that look like fixes."""
    made = Project(folder, PLAIN)
    made.commit(TITLE, {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS, "tests/prices.json": "[1]\n"})
    made.commit(
        "Fix nothing that tests see",
        {"shop/prices.py": FIXED + "\nLIMIT = 3\n", "tests/test_prices.py": TESTS + "\n# more\n"},
    )
    made.commit(
        "Fix that does not work",
        {"shop/prices.py": FIXED, "tests/test_more.py": "def test_it():\n    assert False\n"},
    )
    made.commit(
        "Fix with tests that cannot be imported",
        {
            "shop/prices.py": FIXED + "\nA = 1\n",
            "tests/test_gone.py": "import nowhere\n\ndef test_it(): ...\n",
        },
    )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    project: Project
    folder: Path
    report: Report
    fix: str


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mined")
    project = make_project(folder / "me__shop")
    found, tried = run(project, folder)
    assert len(tried) == 4
    return Mined(project=project, folder=folder, report=found, fix=project.git("rev-parse", "HEAD~3"))


def run(project: Project, tmp_path, *, limit=None, tests=()):
    repository = Repository.open(project.folder)
    settings = MiningSettings(repeats=2, timeout_s=60, tests=tests)
    selection = select(repository, walk(repository), settings)
    journal = Journal(tmp_path / "partial", {})
    sandboxes = SandboxSettings(state_dir=tmp_path / "state", memory_mib=1024, pids=256)
    tried: list[Result] = []

    async def work():
        async with make_provider(sandboxes) as provider:
            runner = Runner(
                provider=provider,
                cache=tmp_path / "workspaces",
                settings=GradingSettings(concurrency=2),
                limits=sandboxes.limits(),
            )
            await mine(
                repository,
                selection,
                journal,
                runner,
                settings=settings,
                issues={},
                limit=limit,
                progress=tried.append,
            )

    asyncio.run(work())
    return report(selection, read_results(journal), limit), tried


def test_fix_with_tests_becomes_a_proven_task(mined):
    found = mined.report
    assert found.candidates == found.tried == 4
    assert found.refused == {Reason.NO_FAIL_TO_PASS: 1, Reason.GOLD_FAILS: 1, Reason.DOES_NOT_RUN: 1}
    (task,) = found.tasks
    assert task.id == f"me__shop-{mined.fix[:10]}"
    assert task.problem == (
        f"{TITLE}\n\nThis fails today:\n\n```python\nfrom shop import total\n\n"
        "assert total([1, 2, 3]) == 6\n# today: AssertionError: assert 5 == 6\n```"
    )
    assert (task.metadata["fairness"], task.metadata["untold"]) == ("fair", [])
    assert task.metadata["validation"]["limit_s"] == task.checks.timeout_s == 30.0
    assert task.checks.fail_to_pass == ("tests/test_prices.py::test_of_three",)
    assert task.checks.pass_to_pass == ("tests/test_prices.py::test_of_nothing",)
    base = mined.project.git("rev-parse", f"{mined.fix}~1")
    assert (task.environment.commit, task.environment.repo) == (base, "me/shop")
    assert task.metadata["fix_commit"] == mined.fix
    assert task.metadata["files"] == ["shop/prices.py"]
    assert task.metadata["functions"] == ["total"]
    assert task.metadata["validation"]["repeats"] == 2


def test_repository_holds_neither_the_fix_nor_its_tests(mined):
    workspace = prepare(mined.report.tasks[0], mined.folder / "workspaces")
    texts = [path.read_bytes() for path in workspace.rglob("*") if path.is_file()]
    assert not any(b"for price in prices" in text or b"test_of_three" in text for text in texts)
    assert not (workspace / "tests" / "prices.json").exists()


def test_continued_run_tries_only_new_commits(mined):
    again, tried = run(mined.project, mined.folder)
    assert (again, tried) == (mined.report, [])


def test_limit_stops_the_run(mined):
    worse = {
        "shop/prices.py": FIXED.replace("sum(", "-sum("),
        "tests/test_prices.py": TESTS.replace("6", "-6"),
    }
    mined.project.commit("Fix totals of nothing", worse)
    limited, tried = run(mined.project, mined.folder, limit=1)
    assert (len(limited.tasks), limited.candidates, tried) == (1, 5, [])


@pytest.mark.full
def test_flaky_tests_are_excluded_and_named(tmp_path):
    project = Project(tmp_path / "shop", PLAIN)
    project.commit(TITLE, {"shop/prices.py": FIXED, "checks/prices.py": TESTS + FLAKY})
    found, _ = run(project, tmp_path, tests=("checks",))
    (task,) = found.tasks
    assert task.checks.fail_to_pass == ("checks/prices.py::test_of_three",)
    assert not any("luck" in test for test in task.checks.pass_to_pass)
    assert len(task.metadata["flaky"]) == 4
    assert all(test.startswith("checks/prices.py::test_of_luck[") for test in task.metadata["flaky"])


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(command)
    made.callback()(lambda: None)
    return made


@pytest.mark.full
def test_command_writes_tasks_and_reports_commits(tmp_path, monkeypatch):
    project = make_project(tmp_path / "shop")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out" / "tasks.jsonl"
    done = CliRunner().invoke(
        app(),
        ["mine", str(project.folder), "-o", str(out), "--repeat", "1", "--json", "--since", "2020-09-01"],
        standalone_mode=False,
    )
    assert done.exception is None, done.output
    told = json.loads(done.stdout)
    assert (told["commits"], told["candidates"], told["admitted"]) == (4, 4, 1)
    assert told["refused"] == {"no_fail_to_pass": 1, "gold_fails": 1, "does_not_run": 1}
    assert {row["reason"] for row in told["reasons"]} == set(told["refused"])
    assert [task.id for task in load_all(out)] == told["tasks"]
    head = project.git("rev-parse", "HEAD")[:10]
    assert sorted(path.name for path in out.parent.iterdir()) == [f"local__shop-{head}.bundle", "tasks.jsonl"]
    assert str(tmp_path) not in out.read_text()


def test_fix_of_many_tests_is_refused_as_a_feature():
    one_test = [f"t.py::test_it[{number}]" for number in range(50)]
    require_one_bug([*one_test, *(f"t.py::test_{number}" for number in range(9))], 10)
    with pytest.raises(CommitRejected) as caught:
        require_one_bug([*one_test, *(f"t.py::test_{number}" for number in range(10))], 10)
    assert caught.value.reason is Reason.WHOLE_FEATURE
    assert caught.value.detail == "11 test functions, of at most 10"


def test_results_are_read_back_from_the_journal(tmp_path):
    (task,) = generate(TasksSettings(train=1, test=0, unseen=0)).train
    results = {
        "a": Result(commit="a", task=task),
        "b": Result(commit="b", reason=Reason.TOO_SLOW, detail="more than 10 s"),
    }
    journal = Journal(tmp_path / "partial", {})
    for commit, result in results.items():
        journal.put(commit, result.to_json())
    assert read_results(Journal(tmp_path / "partial", {})) == results


@pytest.mark.parametrize("row", [{}, {"task": None, "reason": "NOTHING", "detail": ""}, 3])
def test_result_that_cannot_be_read_names_its_commit(row):
    journal = Journal(None, {})
    journal.put("a", row)
    with pytest.raises(TaskError, match="commit a in the journal"):
        read_results(journal)
