"""Grading in sandboxes that run nothing: scripts, images with earlier changes, evidence of tampering."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hone.grading import Grader, GraderError, GradingSettings
from hone.grading.in_sandbox.hone_tally import HELLO
from hone.grading.run import Edition
from hone.grading.variation import Variation, variation_of
from hone.sandbox import ExecResult, Sandbox, SandboxLost, SandboxSpec
from hone.sandbox.contract import Command, ProviderUnavailable
from hone.types import Control, Environment, Task, TestStatus, Verdict
from tests.environment.scripted import ScriptedProvider, ScriptedSandbox, ended
from tests.grading.example import make_task

PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n"
LOG_SCRIPT = ": '>>>>> Start Test Output'\n{command}\n: '>>>>> End Test Output'"
Answer = Callable[[Command], ExecResult]


class TreeSandbox(ScriptedSandbox):
    """Keeps what is written, and holds the files of `tree`."""

    def __init__(self, answer: Answer, spec: SandboxSpec, tree: dict[str, bytes]) -> None:
        super().__init__(answer, spec)
        self.written: dict[str, bytes] = {}
        self.tree = tree

    async def read(self, path: str) -> bytes:
        return self.tree[path]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.written[path] = data


class TreeProvider(ScriptedProvider):
    def __init__(self, answer: Answer, tree: dict[str, bytes] | None = None) -> None:
        super().__init__(answer)
        self.tree = tree or {}

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started.append(TreeSandbox(self.answer, spec, self.tree))
        return self.started[-1]

    def written(self) -> dict[str, bytes]:
        """Return path -> content of the files that the newest sandbox was given."""
        sandbox = self.started[-1]
        assert isinstance(sandbox, TreeSandbox)
        return sandbox.written

    def script(self) -> str:
        """Return the script that the newest sandbox was given last."""
        return list(self.written().values())[-1].decode()


def image_task(**checks: object) -> Task:
    named = {"fail_to_pass": ("tests/t.py::a",), "pass_to_pass": (), "test_files": {}, **checks}
    return dataclasses.replace(make_task(**named), environment=Environment(image="docker://x", repo="o/p"))


def grade(provider: ScriptedProvider, task: Task, tmp_path: Path, patch: str = PATCH) -> Verdict:
    grader = Grader(provider, GradingSettings(), cache=tmp_path)
    return asyncio.run(grader.grade_uncached(task, patch))


def applied(command: Command) -> ExecResult:
    """Answer as the apply script does in a tree where `built.so` is new and the patch changes `a.py`."""
    place = next(number for number, word in enumerate(command.argv) if word in ("clean", "dirty"))
    clean, separator = command.argv[place : place + 2]
    before = f"{separator}\0?? built.so\0" if clean == "dirty" else ""
    return ended(stdout=f" M a.py\0?? built.so\0{before}".encode())


def is_apply(command: Command) -> bool:
    return "apply" in command.argv


def test_earlier_changes_of_an_image_are_not_the_patchs(tmp_path: Path) -> None:
    def answer(command: Command) -> ExecResult:
        if is_apply(command):
            return applied(command)
        raise SandboxLost("out of memory")

    provider = TreeProvider(answer)
    verdict = grade(provider, image_task(), tmp_path)
    assert not verdict.resolved
    assert "took its sandbox down, twice: out of memory" in verdict.log
    assert len(provider.started) == 2
    assert all(sandbox.closed for sandbox in provider.started)


C_PATCH = """diff --git a/a.c b/a.c
--- a/a.c
+++ b/a.c
@@ -1 +1 @@
-int a;
+int b;
"""


def compiled_task() -> Task:
    task = image_task()
    return dataclasses.replace(task, environment=dataclasses.replace(task.environment, build=("make",)))


def test_build_whose_sandbox_is_lost_is_tried_again(tmp_path: Path) -> None:
    def answer(command: Command) -> ExecResult:
        raise SandboxLost("its node cannot be reached")

    provider = TreeProvider(answer)
    verdict = grade(provider, compiled_task(), tmp_path, patch=C_PATCH)
    assert "took its sandbox down, twice" in verdict.log
    assert len(provider.started) == 2
    assert all(sandbox.closed for sandbox in provider.started)


def test_no_sandbox_for_a_build_is_a_grader_error(tmp_path: Path) -> None:
    class Full(TreeProvider):
        async def start(self, spec: SandboxSpec) -> Sandbox:
            raise ProviderUnavailable("the machine is full")

    with pytest.raises(GraderError, match="no sandbox to compile in: the machine is full"):
        grade(Full(lambda command: ended()), compiled_task(), tmp_path, patch=C_PATCH)


def test_two_sandboxes_lost_under_a_trusted_patch_are_no_verdict(tmp_path: Path) -> None:
    def answer(command: Command) -> ExecResult:
        raise SandboxLost("its node cannot be reached")

    provider = TreeProvider(answer)
    grader = Grader(provider, GradingSettings(), cache=tmp_path)
    with pytest.raises(GraderError, match="took their sandbox down, twice: its node cannot be reached"):
        asyncio.run(grader.grade_trusted(image_task(), PATCH, Variation()))
    assert len(provider.started) == 2
    assert all(sandbox.closed for sandbox in provider.started)


def test_run_of_a_variation_gets_its_variables_its_order_and_its_parts(tmp_path: Path) -> None:
    runners: list[Command] = []

    def answer(command: Command) -> ExecResult:
        if any("hone_start.py" in word for word in command.argv):
            runners.append(command)
        return ended()

    provider = TreeProvider(answer)
    grader = Grader(provider, GradingSettings(), cache=tmp_path)
    task = image_task(test_files={"tests/t.py": "# caf\udce9\n"})
    for number in (0, 1, 2):
        with pytest.raises(GraderError, match="the test runner did not start"):
            asyncio.run(grader.grade_trusted(task, "", variation_of(number)))
    plain, ordered, *parts = runners
    assert plain.env == {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    assert b"hone_order" not in plain.stdin
    assert ordered.env == {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
    assert b'"-p", "hone_order", "--hone-order", "1"]' in ordered.stdin
    assert {part.env["TZ"] for part in parts} == {"America/St_Johns"}
    assert [b'"--hone-part", "%d/2"]' % number in part.stdin for number, part in enumerate(parts, 1)] == [
        True,
        True,
    ]
    assert all(b'"test_files": {}' in part.stdin for part in parts)
    assert provider.written() == {"/testbed/tests/t.py": b"# caf\xe9\n"}


def test_log_of_a_script_gives_its_statuses(tmp_path: Path) -> None:
    def answer(command: Command) -> ExecResult:
        if is_apply(command):
            return applied(command)
        nonce = re.findall(r"Output ([0-9a-f]{32})'", provider.script())[0]
        lines = (
            f"+ : '>>>>> Start Test Output {nonce}'",
            "test_a (tests.t.T) ... ok",
            f"+ : '>>>>> End Test Output {nonce}'",
            f"+ echo 'SWEBENCH_TEST_EXIT_CODE {nonce}: 0'",
        )
        return ended(stdout="\n".join(lines).encode())

    task = image_task(
        script=LOG_SCRIPT.format(command="./runtests"),
        parser="parse_log_django",
        fail_to_pass=("test_a (tests.t.T)",),
    )
    provider = TreeProvider(answer)
    verdict = grade(provider, task, tmp_path)
    assert verdict.tests == {"test_a (tests.t.T)": TestStatus.PASSED}
    assert verdict.resolved


def test_script_out_of_time_says_its_limit_in_seconds(tmp_path: Path) -> None:
    task = image_task(
        script=LOG_SCRIPT.format(command="./runtests"), parser="parse_log_django", timeout_s=60.0
    )
    provider = TreeProvider(lambda command: ended(timed_out=True))
    verdict = grade(provider, task, tmp_path, patch="")
    assert verdict.log.endswith("the tests were stopped after 60 s")


def pytest_task() -> Task:
    return image_task(script=LOG_SCRIPT.format(command="pytest tests/t.py"), parser="parse_log_pytest")


def test_failed_preparation_of_a_script_is_a_grader_error(tmp_path: Path) -> None:
    provider = TreeProvider(lambda command: ended(7, stderr="no such revision"))
    with pytest.raises(GraderError, match=r"could not prepare the tests \(exit code 7: no such revision\)"):
        grade(provider, pytest_task(), tmp_path)


def report(command: Command, **fields: object) -> ExecResult:
    """Answer as the runner inside does, and that the tree holds no module of the framework."""
    if not command.stdin:
        return ended()
    size = struct.unpack("!I", command.stdin[:4])[0]
    nonce = command.stdin[4 + size :][:32].decode()
    whole = {
        "statuses": {},
        "finished": True,
        "tampered": None,
        "titles": {},
        "crashed": None,
        "timed_out": False,
        "exit_code": 0,
        "log": "",
        "seconds": 1.0,
        "memory_kib": 1024,
        **fields,
    }
    return ended(stdout=HELLO + f"{nonce} {json.dumps([whole])}\n".encode())


def test_script_runs_with_its_own_python_and_tests_in_any_encoding(tmp_path: Path) -> None:
    jobs: list[dict[str, object]] = []
    pythons: list[str] = []

    def answer(command: Command) -> ExecResult:
        if command.argv[-1].endswith(".sh"):
            border = re.findall(r"printf '%s\\0' (\w+) &&", provider.script())[0]
            parts = ("", "?? tests/t.py\0", "/usr/bin/python\n\0", "PATH=/usr/bin\0")
            return ended(stdout=f"{border}\0".join(parts).encode())
        if "hone_start" in command.argv[-1]:
            jobs.append(json.loads(command.stdin[4 : 4 + struct.unpack("!I", command.stdin[:4])[0]]))
            pythons.append(command.argv[-3])
            return report(command, statuses={"tests/t.py::a": "p"})
        return ended()

    provider = TreeProvider(answer, {"/testbed/tests/t.py": b"# caf\xe9\n"})
    grade(provider, pytest_task(), tmp_path, patch="")
    assert [job["test_files"] for job in jobs] == [{"tests/t.py": "# caf\udce9\n"}]
    assert pythons == ["/usr/bin/python"]


def test_suite_with_evidence_of_tampering_is_unfinished(tmp_path: Path) -> None:
    provider = TreeProvider(lambda command: report(command, tampered="a test was replaced", log="3 passed"))
    grader = Grader(provider, GradingSettings(), cache=tmp_path)
    run = asyncio.run(grader.run_suite(image_task(), "", ["tests/t.py"]))
    assert (run.finished, run.log) == (False, "a test was replaced")


def ran(command: Command, **fields: object) -> ExecResult:
    """Answer the apply script, and the runner after its one test passed; other commands print nothing."""
    if is_apply(command):
        return applied(command)
    return report(command, statuses="p", **fields) if "hone_start" in command.argv[-1] else ended()


def test_fault_under_the_reference_patch_needs_no_second_run(tmp_path: Path) -> None:
    provider = TreeProvider(lambda command: ran(command, finished=False))
    with pytest.raises(GraderError, match="with the reference patch either: the test session did not run"):
        grade(provider, image_task(gold_patch=PATCH), tmp_path)
    assert len(provider.started) == 1


def test_run_out_of_time_is_not_compared_with_the_reference_patch(tmp_path: Path) -> None:
    provider = TreeProvider(lambda command: ran(command, finished=False, timed_out=True))
    verdict = grade(provider, image_task(), tmp_path)
    assert (verdict.resolved, verdict.log) == (False, "\nthe tests were stopped after 1 s")
    assert len(provider.started) == 1


def test_control_of_another_text_is_a_grader_error(tmp_path: Path) -> None:
    control = Control(file="tests/t.py", start=0, old="1", new="2", tests=("tests/t.py::a",))
    task = image_task(controls=(control,), test_files={"tests/t.py": "3"})
    grader = Grader(TreeProvider(ran), GradingSettings(controls=1), cache=tmp_path)
    with pytest.raises(GraderError, match="a control does not fit its test file"):
        asyncio.run(grader.grade_uncached(task, ""))


def test_trusted_files_that_the_tests_name_may_be_edited_too(tmp_path: Path) -> None:
    found: list[dict[str, str]] = []

    def edit(texts: Mapping[str, str]) -> list[Edition]:
        found.append(dict(texts))
        return [Edition()]

    def answer(command: Command) -> ExecResult:
        return ended(stdout=b"tests/values.json\0") if command.argv[0] == "find" else ran(command)

    provider = TreeProvider(answer, {"/testbed/tests/values.json": b"[1]"})
    grader = Grader(provider, GradingSettings(), cache=tmp_path)
    test = "open('tests/values.json')\n"
    asyncio.run(grader.run_edited(image_task(test_files={"tests/t.py": test}), PATCH, edit))
    assert found == [{"tests/t.py": test, "tests/values.json": "[1]"}]
