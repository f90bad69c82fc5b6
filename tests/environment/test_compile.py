"""Extensions compiled in the tree, and again with a patch that changes their sources."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from benchmarks.parts.predictions import diff
from hone.environment import (
    EnvironmentSettings,
    PatchRefused,
    TaskEnvironment,
    changes_sources,
    compiled_libraries,
    filter_patch,
    put_libraries,
    resolve_environment,
)
from hone.grading import Grader, GradingSettings
from hone.sandbox import ExecResult, Sandbox, SandboxSpec, make_provider
from hone.sandbox.contract import Limits
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.python.compiled import declares_extensions
from hone.tasks.workspace import prepare
from hone.types import Checks, Environment, Task, Verdict
from tests.environment.scripted import ScriptedProvider, ScriptedSandbox, ended
from tests.grading.calc import git

needs_compiler = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no C compiler"),
]
MODULE = """import ctypes
import os

add = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "fast.so")).add
"""
WRONG, RIGHT = "int add(int a, int b) { return a - b; }\n", "int add(int a, int b) { return a + b; }\n"
TEST = "from calc import add\n\n\ndef test_nothing():\n    assert add(3, 0) == 3\n"
NEW_TEST = TEST + "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
MAKEFILE = "all:\n\tcc -shared -fPIC -o calc/fast.so calc/fast.c\n"
FILES = {
    "Makefile": MAKEFILE,
    "calc/__init__.py": MODULE,
    "calc/fast.c": WRONG,
    "tests/test_calc.py": TEST,
    ".gitignore": "*.so\n",
}


def make_task(folder: Path, command: str = "make -s") -> Task:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Base")
    return Task(
        id="calc-1",
        problem="add subtracts",
        environment=Environment(
            image=f"repo:{folder}",
            commit=git(folder, "rev-parse", "HEAD"),
            paths=("",),
            build=(command,),
        ),
        checks=Checks(
            fail_to_pass=("tests/test_calc.py::test_add",),
            pass_to_pass=("tests/test_calc.py::test_nothing",),
            test_files={"tests/test_calc.py": NEW_TEST},
            gold_patch=change({"calc/fast.c": RIGHT}),
        ),
        source="test",
    )


def change(files: dict[str, str]) -> str:
    return diff({name: FILES.get(name) for name in files}, files)


def grade(task: Task, root: Path, *patches: str) -> list[Verdict]:
    async def scenario() -> list[Verdict]:
        async with make_provider(SandboxSettings(state_dir=root / "state")) as provider:
            grader = Grader(provider, GradingSettings(), cache=root / "workspaces")
            return [await grader.grade_uncached(task, patch) for patch in patches]

    return asyncio.run(scenario())


def libraries_of(task: Task, patch: str, root: Path) -> set[str]:
    """Return the paths of the libraries that a patch's build gives to its grading."""

    async def scenario() -> set[str]:
        async with make_provider(SandboxSettings(state_dir=root / "state")) as provider:
            settings = GradingSettings()
            environment = await resolve_environment(task, root / "workspaces", settings)
            async with compiled_libraries(
                provider,
                environment,
                task.environment.build[0],
                task.environment.workdir,
                filter_patch(patch, ()),
                ("tests/",),
                settings=settings,
                limits=Limits(),
            ) as folder:
                return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("setup", "has_some"),
    [
        ("setup(ext_modules=get_extensions())", True),
        ("from numpy.distutils.core import setup", True),
        ("setup(ext_modules=[])", False),
        ("setup(classifiers=['Framework :: Sphinx :: Extension'])", False),
    ],
)
def test_setup_tells_whether_there_are_extensions(setup: str, has_some: bool):
    assert declares_extensions(setup) is has_some


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("calc/fast.c", True),
        ("setup.py", True),
        ("pyproject.toml", True),
        ("meson.build", True),
        ("calc/setup.py", False),
        ("calc/fast.so", False),
    ],
)
def test_sources_and_the_build_of_the_repository_are_compiled_again(path: str, changes: bool):
    assert changes_sources(["README.md", path]) is changes


class TreeSandbox(ScriptedSandbox):
    """Has one tree to download, and records what is uploaded."""

    def __init__(self, spec: SandboxSpec, tree: tuple[str, ...], build: ExecResult) -> None:
        super().__init__(lambda command: ended() if "apply" in command.argv else build, spec)
        self.tree = tree
        self.uploads: list[tuple[Path, str]] = []

    async def download(self, source: str, target: Path) -> None:
        for name in self.tree:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).touch()
        (target / "link.so").symlink_to("/etc/passwd")
        await super().download(source, target)

    async def upload(self, source: Path, target: str) -> None:
        self.uploads.append((source, target))


class TreeProvider(ScriptedProvider):
    def __init__(self, *tree: str, result: ExecResult) -> None:
        super().__init__()
        self.tree, self.result = tree, result

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started.append(TreeSandbox(spec, self.tree, self.result))
        return self.started[-1]


def build(provider: TreeProvider, command: str = "make", *protected: str) -> set[str]:
    async def run() -> set[str]:
        environment = TaskEnvironment(image="host", layer=None, wrapper=("wrapper",))
        settings, patch = EnvironmentSettings(build_timeout_s=9), filter_patch("", ())
        async with compiled_libraries(
            provider, environment, command, "/testbed", patch, protected, settings=settings, limits=Limits()
        ) as folder:
            return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}

    return asyncio.run(run())


def test_only_libraries_where_a_patch_may_write_leave_a_build():
    kept = ("calc/fast.so", "calc/windows.pyd", "datasets.so")
    refused = ("conftest.so", "calc/pytest.abi3.so", "_pytest.so", "data/x.so", "calc/fast.c")
    provider = TreeProvider(*kept, *refused, result=ended())
    assert build(provider, "make -s fast", "data/") == set(kept)
    (sandbox,) = provider.started
    command = sandbox.commands[-1]
    assert command.argv[:3] == ["wrapper", "bash", "-c"]
    assert "(make -s fast)" in command.argv[3]
    assert command.timeout_s == 9
    ((source, _),) = sandbox.downloads
    assert source.startswith("/tmp/build.")
    assert f"own={source.removesuffix('/tree')};" in command.argv[3]
    assert sandbox.closed


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            ended(1, b"fast.c:1: caf\xe9"),
            "extensions cannot be compiled: fast.c:1: caf\N{REPLACEMENT CHARACTER}$",
        ),
        (ended(-1, timed_out=True), "extensions were not compiled within 9 s$"),
    ],
)
def test_patch_whose_build_fails_is_refused(result: ExecResult, said: str):
    provider = TreeProvider("calc/fast.so", result=result)
    with pytest.raises(PatchRefused, match=said):
        build(provider)
    assert provider.started[0].closed


def put(libraries: Path | None, made_room: ExecResult) -> TreeSandbox:
    sandbox = TreeSandbox(SandboxSpec(workdir="/testbed"), (), made_room)
    asyncio.run(put_libraries(sandbox, libraries))
    return sandbox


def test_libraries_replace_those_of_the_tree(tmp_path: Path):
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc" / "fast.so").touch()
    sandbox = put(tmp_path, ended())
    assert [command.stdin for command in sandbox.commands] == [b"calc/fast.so\0"]
    assert sandbox.uploads == [(tmp_path, "/testbed")]
    with pytest.raises(PatchRefused, match="below a link"):
        put(tmp_path, ended(1))
    assert put(None, ended(1)).uploads == []


class TestWithCompiler:
    pytestmark = needs_compiler

    def test_patch_of_c_sources_is_compiled(self, tmp_path: Path):
        task = make_task(tmp_path / "repository")
        gold, empty, broken = grade(
            task, tmp_path, task.checks.gold_patch, "", change({"calc/fast.c": "int add(\n"})
        )
        assert gold.resolved
        assert [str(status) for status in empty.tests.values()] == ["failed", "passed"]
        assert not broken.resolved
        assert "cannot be compiled" in broken.log

    @pytest.mark.full
    def test_build_of_a_patch_reaches_nothing_but_libraries(self, tmp_path: Path):
        """The patch's build overwrites sources and tests, and leaves libraries where tests load them."""
        attack = (
            MAKEFILE
            + "\tprintf 'def test_add(): pass\\ndef test_nothing(): pass\\n' > tests/test_calc.py\n"
            + "\tprintf 'def add(a, b): return a + b\\n' > calc/__init__.py\n"
            + "\tcp calc/fast.so conftest.so; cp calc/fast.so tests/test_calc.so\n"
            + "\tfor i in 1 2 3; do (sleep 1000 &) ; done\n"
        )
        task = make_task(tmp_path / "repository")
        comment = change({"calc/fast.c": f"/* no fix */ {WRONG}", "Makefile": attack})
        (verdict,) = grade(task, tmp_path, comment)
        assert [str(status) for status in verdict.tests.values()] == ["failed", "passed"]
        assert verdict.tampered is None
        assert libraries_of(task, comment, tmp_path) == {"calc/fast.so"}

    @pytest.mark.full
    def test_library_is_not_written_through_a_link(self, tmp_path: Path):
        attack = f"{MAKEFILE}\trm -f more && mkdir more && cp calc/fast.so more/x.so\n"
        link = (
            "diff --git a/more b/more\nnew file mode 120000\n--- /dev/null\n+++ b/more\n"
            "@@ -0,0 +1 @@\n+tests\n\\ No newline at end of file\n"
        )
        task = make_task(tmp_path / "repository")
        (verdict,) = grade(task, tmp_path, change({"calc/fast.c": RIGHT, "Makefile": attack}) + link)
        assert not verdict.resolved
        assert "below a link" in verdict.log

    @pytest.mark.full
    def test_build_that_fails_is_no_environment(self, tmp_path: Path):
        task = make_task(tmp_path / "repository", "make -s nothing")
        with pytest.raises(TaskError, match=r"extensions cannot be compiled: make: .*nothing"):
            prepare(task, tmp_path / "workspaces")
        assert not [path for path in (tmp_path / "workspaces").iterdir() if path.is_dir()]
