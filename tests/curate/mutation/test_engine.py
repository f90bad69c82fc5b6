import asyncio
import subprocess

import pytest

from hone.curate.mutation.engine import Reason, mutate
from hone.curate.runner import Runner
from hone.curate.statements import changed_lines, find_leak
from hone.grading.settings import GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.workspace import prepare
from tests.curate.mutation.offered import dedent

COUNT = 6
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": """
        RATE = 20


        def total(prices, discount=0):
            result = 0
            for price in prices:
                if price < 0:
                    raise ValueError("a price below zero")
                result += price
            return result - discount


        def with_tax(price):
            return price + price * RATE // 100


        def untested(a, b):
            return a - b
    """,
    "shop/cart.py": """
        from shop.prices import total, with_tax


        class Cart:
            def __init__(self, name):
                self.name = name.strip()
                self.prices = []

            def add(self, price, count=1):
                for _ in range(count):
                    self.prices.append(price)
                return len(self.prices)

            def sum(self):
                return with_tax(total(self.prices))
    """,
    "tests/test_prices.py": """
        import pytest
        from shop.prices import total, with_tax


        def test_total():
            assert total([1, 2, 3]) == 6


        def test_discount():
            assert total([5, 5], 3) == 7


        def test_below_zero():
            with pytest.raises(ValueError):
                total([1, -1])


        def test_nothing():
            assert total([]) == 0


        def test_tax():
            assert with_tax(50) == 60


        def test_broken_already():
            assert with_tax(1) == 7
    """,
    "tests/test_cart.py": """
        from shop.cart import Cart


        def test_name():
            assert Cart(" x ").name == "x"


        def test_add():
            cart = Cart("x")
            assert cart.add(3) == 1
            assert cart.add(4, 2) == 3


        def test_sum():
            cart = Cart("x")
            cart.add(10, 2)
            assert cart.sum() == 24
    """,
}


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True
    ).stdout.decode()


def make_repository(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(dedent(text) if text else "")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "a shop")
    return folder


class Counting:
    """A provider that counts the sandboxes it starts."""

    def __init__(self, provider):
        self.provider, self.starts = provider, 0

    async def start(self, spec):
        self.starts += 1
        return await self.provider.start(spec)


def run(repository, tmp_path, count=COUNT, **options):
    async def main():
        async with make_provider(SandboxSettings(state_dir=tmp_path / "state")) as provider:
            counting = Counting(provider)
            report = await mutate(
                repository,
                Runner(
                    provider=counting,
                    cache=tmp_path / "cache",
                    settings=GradingSettings(concurrency=2),
                    limits=SandboxSettings().limits(),
                ),
                count=count,
                repeats=1,
                **options,
            )
            return report, counting.starts

    return asyncio.run(main())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutate")
    repository = make_repository(folder / "shop", FILES)
    report, starts = run(repository, folder, journal=folder / "journal")
    return folder, repository, report, starts


pytestmark = pytest.mark.sandbox


@pytest.mark.full
def test_detected_bugs_become_proven_tasks(made):
    _, repository, report, _ = made
    assert len(report.tasks) == COUNT
    assert report.ran >= COUNT
    for task in report.tasks:
        assert task.metadata["validation"]["repeats"] == 1
        assert task.environment.commit == git(repository, "rev-parse", "HEAD").strip()
        assert task.checks.fail_to_pass
        assert not set(task.checks.fail_to_pass) & set(task.checks.pass_to_pass)
        assert set(task.checks.test_files) <= {path for path in FILES if path.startswith("tests/")}
        assert "raises" in task.problem or "\nassert " in task.problem.rpartition("statement fails:")[2]
        assert find_leak(task.problem, changed_lines(task.checks.gold_patch, "+-")) is None


@pytest.mark.full
def test_repository_has_one_commit_and_the_gold_patch_fixes_it(made):
    folder, repository, report, _ = made
    for task in report.tasks:
        workspace = prepare(task, folder / "workspaces")
        assert git(workspace, "rev-list", "--all", "--count").strip() == "1"
        assert "hone_probe" not in git(workspace, "ls-files")
        for path in task.metadata["files"]:
            assert (workspace / path).read_text() != (repository / path).read_text()
        subprocess.run(
            ["git", "apply", "-"], cwd=workspace, input=task.checks.gold_patch.encode(), check=True
        )
        for path in FILES:
            assert (workspace / path).read_text() == (repository / path).read_text()


@pytest.mark.full
def test_failing_tests_and_unreached_code_are_not_used(made):
    _, _, report, _ = made
    assert list(report.excluded_tests) == ["tests/test_prices.py::test_broken_already"]
    assert report.unreached > 0
    for task in report.tasks:
        assert "untested" not in task.metadata["functions"]
        named = (*task.checks.fail_to_pass, *task.checks.pass_to_pass)
        assert "tests/test_prices.py::test_broken_already" not in named


@pytest.mark.full
def test_every_candidate_is_counted_once(made):
    _, _, report, _ = made
    assert report.candidates == len(report.tasks) + sum(report.rejected.values())
    assert set(report.rejected) <= set(Reason)


@pytest.mark.full
def test_continued_run_repeats_no_test_run(made):
    folder, repository, report, starts = made
    again, more = run(repository, folder, journal=folder / "journal")
    assert starts > 2 * COUNT
    assert more == 0
    assert again == report


@pytest.mark.full
def test_another_seed_finds_other_bugs(made):
    folder, repository, report, _ = made
    other, _ = run(repository, folder, seed=1, count=2)
    assert {task.id for task in other.tasks} != {task.id for task in report.tasks[:2]}


@pytest.mark.full
def test_only_the_chosen_tests_are_used(made):
    folder, repository, _, _ = made
    report, _ = run(repository, folder, count=1, tests=["tests/test_cart.py"])
    (task,) = report.tasks
    assert {test.split("::")[0] for test in task.checks.fail_to_pass} == {"tests/test_cart.py"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.py": "x = 1\n"}, "has no tests: no file is called test_"),
        ({"test_a.py": "def test():\n    assert True\n"}, "has no Python source outside of its tests"),
        (
            {"a.py": "def f():\n    return 1\n", "test_a.py": "def test():\n    assert False\n"},
            "no test passes on the unchanged repository: test_a.py::test does not pass",
        ),
    ],
)
def test_unusable_repository_is_an_error(tmp_path, files, said):
    with pytest.raises(TaskError, match=said):
        run(make_repository(tmp_path / "repository", files), tmp_path)


def test_folder_without_a_repository_is_an_error(tmp_path):
    with pytest.raises(TaskError, match="is not a git repository"):
        run(tmp_path, tmp_path)
