"""Attacks before the tests: code of the patch that would run before, or beside, the trusted runner.

Each patch leaves a program that notes its process wherever it runs. None may run before the gate opens, while
the patch is applied; afterwards the patch is code under test and runs in the runner's child only.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from hone.environment import PatchRefused, apply_patch, filter_patch, resolve_environment
from hone.grading import Grader, GradingSettings
from hone.grading.plan import compile_plan
from hone.grading.run import run_tests, start_sandbox
from hone.sandbox import make_provider
from hone.sandbox.contract import Limits
from hone.sandbox.settings import SandboxSettings
from hone.types import Checks, Commit, Environment, Task
from tests.attacks.grading.attack import make_task
from tests.attacks.grading.test_patches import new
from tests.grading.calc import BUGGY, GOLD, git
from tests.services.image import unpack_base

pytestmark = pytest.mark.sandbox

NOTE = "#!/bin/sh\necho ran >> /tmp/ran\n(while :; do echo later >> /tmp/ran; sleep 0.01; done) &\n"
CONFIG = '[core]\n\tfsmonitor = ./x\n\thooksPath = .\n[filter "f"]\n\tclean = ./x\n\tsmudge = ./x\n'
# git refuses this context, `patch` does not: the last of the ladder, which follows links
FUZZY = "--- a/stats.py\n+++ b/stats.py\n@@ -1,3 +1,4 @@\n wrong\n     return a - b\n+\n \n"


def lines(path: str, text: str, mode: str = "100644") -> str:
    body = "".join(f"+{line}\n" for line in text.splitlines())
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1,{len(text.splitlines())} @@\n{body}"


def link(path: str, target: str) -> str:
    return new(path, target, "120000") + "\\ No newline at end of file\n"


PROGRAMS = lines("x", NOTE, "100755") + "".join(
    lines(name, NOTE, "100755") for name in ("git", "patch", "bin/cat")
)
LOOSE = PROGRAMS + FUZZY


def shared(path: str) -> str:
    """Return a patch whose file `commondir`, below a link to git's directory, names another configuration."""
    return (
        lines("sub/config", CONFIG)
        + new("sub/objects/x")
        + new("sub/refs/x")
        + lines(f"{path}/commondir", "../sub")
    )


BEFORE: dict[str, str] = {
    "a link to git's directory": LOOSE + link("out", ".git") + shared("out"),
    "a link to git's directory through another": LOOSE
    + link("here", ".") + link("out", "here/.git") + shared("out"),
    "a link whose name hides its mode": LOOSE + link("@@out", ".git") + shared("@@out"),
    "a link left where git ignores it": LOOSE + link("build", ".git") + shared("build"),
    "a link in the place of rejected hunks": LOOSE + link("stats.py.rej", ".git/config"),
    "a link that the repository has": LOOSE + shared("linked"),
    "a repository within": PROGRAMS + lines("sub/HEAD", "ref: refs/heads/main") + lines("sub/config", CONFIG)
    + new("sub/objects/x") + new("sub/refs/x"),
    "a hook": PROGRAMS + lines("post-checkout", NOTE, "100755") + lines("post-index-change", NOTE, "100755"),
    "an editor's script in a binary file": PROGRAMS
    + "diff --git a/y b/y\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\n"
    + "--- a/y\n+++ b/y\n1i\n!./x\n.\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE)
def test_applying_a_patch_runs_nothing_of_it(name: str, tmp_path: Path) -> None:
    """The repository has a link to its git directory, and names a driver that the patch could define."""
    task = make_task()
    commit = Commit(message="More", files={".gitignore": "build\nlinked\n", ".gitattributes": "* filter=f\n"})
    task = dataclasses.replace(
        task, environment=dataclasses.replace(task.environment, history=(*task.environment.history, commit))
    )
    assert asyncio.run(_apply(task, BEFORE[name], tmp_path)) == ""


async def _apply(task: Task, patch: str, scratch: Path) -> str:
    """Apply the patch; return what its programs noted, and the processes that they left."""
    plan = compile_plan(task)
    async with make_provider(SandboxSettings()) as provider:
        environment = await resolve_environment(task, scratch / "workspaces", GradingSettings())
        async with await start_sandbox(
            provider, plan.job.workdir, environment, Limits(), whole_report=False
        ) as sandbox:
            await sandbox.exec("ln -s .git linked")
            try:
                filtered = filter_patch(patch, plan.protected)
                await apply_patch(sandbox, filtered.text, set(filtered.paths), timeout_s=60, clean=False)
            except PatchRefused:
                pass
            return (await sandbox.exec("cat /tmp/ran 2>/dev/null; pgrep -x sh")).text


def test_processes_of_the_sandbox_end_before_the_tests_run(tmp_path: Path) -> None:
    task = make_task()
    plan = compile_plan(task)

    async def scenario() -> str:
        async with make_provider(SandboxSettings()) as provider:
            environment = await resolve_environment(task, tmp_path / "workspaces", GradingSettings())
            async with await start_sandbox(
                provider, plan.job.workdir, environment, Limits(), whole_report=False
            ) as sandbox:
                started = "setsid sleep 60 >/dev/null 2>&1 & sleep 60 >/dev/null 2>&1 &"
                await sandbox.exec(f"{started} until [ $(pgrep -c sleep) = 2 ]; do :; done")
                patch = new("a")
                await apply_patch(sandbox, patch, {"a"}, timeout_s=60)
                return (await sandbox.exec("pgrep -c sleep")).text.strip()

    assert asyncio.run(scenario()) == "0"


# In the runner's parent, whose own parent is process 1, this takes its input and its place.
TAKE_OVER = "import os\nif os.getppid() == 1:\n    open('/tmp/ran', 'a').write(__name__ + chr(10))\n"
MODULES = (
    "sitecustomize/__init__.py", "usercustomize/__init__.py", "sitecustomize.py", "pytest.py",
    "_pytest/__init__.py", "pluggy/__init__.py", "iniconfig/__init__.py", "packaging/__init__.py", "json.py",
    "site.py", "encodings/__init__.py", "select.py", "shutil.py", "hone_session.py", "_virtualenv.py",
    "helper.py",
)  # fmt: skip
SCRIPT = """#!/bin/bash
cd /testbed
export PYTHONPATH=/testbed:/opt/extra PYTHONWARNINGS=ignore::helper.Warned PATH=/testbed/bin:$PATH
: '>>>>> Start Test Output'
python3 -m pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
"""
TEST = """import os
import subprocess
import sys

from calc import add


def test_add():
    assert add(1, 2) == 3


def test_environment():
    assert os.environ["PYTHONPATH"].startswith("/testbed")
    assert os.environ["PATH"].startswith("/testbed/bin:")
    assert subprocess.run([sys.executable, "-c", "import pytest"]).returncode == 0
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An image that has the repository on sys.path in every way: first in a .pth file, which also imports a
    module by name, in variables, and as an editable installation."""
    root = tmp_path_factory.mktemp("image")
    unpack_base(root)
    testbed = root / "testbed"
    for path, text in {
        "calc/__init__.py": BUGGY,
        "tests/test_calc.py": TEST,
        "bin/tool": "#!/bin/sh\n",
    }.items():
        (testbed / path).parent.mkdir(parents=True, exist_ok=True)
        (testbed / path).write_text(text)
    (testbed / "bin" / "tool").chmod(0o755)
    git(testbed, "init", "-q", "--initial-branch=main")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "Base")
    site = next(root.glob("usr/**/_pytest")).parent
    (site / "aaa.pth").write_text("import sys; sys.path.insert(0, '/testbed')\n/testbed\n")
    (site / "bbb.pth").write_text("import helper\n")
    return root, git(testbed, "rev-parse", "HEAD")


def image_task(image: tuple[Path, str], script: str) -> Task:
    root, base = image
    return Task(
        id="calc-1",
        problem="add subtracts",
        environment=Environment(image=f"rootfs:{root}", repo="someone/calc", commit=base),
        checks=Checks(
            fail_to_pass=("tests/test_calc.py::test_add",),
            pass_to_pass=("tests/test_calc.py::test_environment",) if script else (),
            test_files={},
            gold_patch=GOLD,
            script=script,
            parser="parse_log_pytest",
        ),
        source="tests",
    )


@pytest.mark.parametrize("script", [SCRIPT, ""], ids=["with a script", "without a script"])
def test_modules_of_the_patch_are_not_imported_by_the_runner(
    image: tuple[Path, str], script: str, tmp_path: Path
) -> None:
    task = image_task(image, script)
    patch = "".join(lines(path, TAKE_OVER) for path in MODULES)
    patch += "".join(lines(f"bin/{name}", NOTE, "100755") for name in ("bash", "python3", "env", "git"))
    plan = compile_plan(task)
    filtered = filter_patch(patch, plan.protected)
    job = dataclasses.replace(
        plan.job,
        run_files=("tests/test_calc.py",),
        env=VARIABLES if script else {},
        python="python3" if script else None,
    )

    async def scenario() -> str:
        async with make_provider(SandboxSettings()) as provider:
            environment = await resolve_environment(task, tmp_path, GradingSettings())
            async with await start_sandbox(
                provider, plan.job.workdir, environment, Limits(), whole_report=True
            ) as sandbox:
                await apply_patch(sandbox, filtered.text, set(filtered.paths), timeout_s=60, clean=False)
                await run_tests(sandbox, job, environment, GradingSettings())
                return (await sandbox.exec(["/bin/cat", "/tmp/ran"])).text

    assert asyncio.run(scenario()) == ""


VARIABLES = {
    "PYTHONPATH": "/testbed:/opt/extra",
    "PYTHONWARNINGS": "ignore::helper.Warned",
    "PATH": "/testbed/bin:/usr/bin:/bin",
}


@pytest.mark.parametrize("script", [SCRIPT, ""], ids=["with a script", "without a script"])
def test_fix_is_resolved_where_the_image_has_the_repository_on_its_path(
    image: tuple[Path, str], script: str, tmp_path: Path
) -> None:
    task = image_task(image, script)

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            verdict = await Grader(provider, GradingSettings(), cache=tmp_path).grade_uncached(task, GOLD)
            assert verdict.resolved, verdict

    asyncio.run(scenario())
