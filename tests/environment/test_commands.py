"""Results of git's commands in a sandbox become patches, verdicts on patches, and errors with a cause."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest

from hone.environment import (
    BrokenTree,
    EnvironmentFailed,
    EnvironmentSettings,
    PatchRefused,
    base_mounts,
    extract_patch,
)
from hone.environment.apply import apply_patch, apply_trusted_patch
from hone.sandbox import ExecResult, Limits, SandboxLost, SandboxSpec
from hone.sandbox.contract import Command
from tests.environment.scripted import ScriptedSandbox, ended
from tests.grading.example import make_task

SPEC = SandboxSpec(workdir="/testbed", mounts=base_mounts(Path("/nowhere")), limits=Limits(output_kib=1))
ODD = "caf\udce9\n"  # a byte that is not UTF-8


def apply(result: ExecResult, patch: str = "the patch\n", tests: str = "") -> ScriptedSandbox:
    sandbox = ScriptedSandbox(lambda command: result)
    asyncio.run(apply_patch(sandbox, patch, {"a.py"}, timeout_s=9, tests=tests))
    return sandbox


@pytest.mark.parametrize(
    ("result", "error", "said"),
    [
        (ended(93, stderr="hunk 1 failed\n"), PatchRefused, "^the patch does not apply: hunk 1 failed$"),
        (ended(92, stderr="no"), EnvironmentFailed, "^the task's own tests do not apply: no$"),
        (ended(91, stderr=b"caf\xe9"), EnvironmentFailed, "^git does not work in the sandbox: caf"),
        (ended(94, stderr="no"), PatchRefused, "^the patch changes what runs the tests: no$"),
        (ended(137, stderr="no"), PatchRefused, r"^git failed on the patched tree \(exit code 137\): no$"),
        (ended(-1, timed_out=True), PatchRefused, "^the patch was not applied within 9 s$"),
        (ended(stdout_bytes=7), PatchRefused, "^the patch changes too many files$"),
        (ended(stdout=b"?? b.py\0"), PatchRefused, "headers do not name: b.py$"),
    ],
)
def test_each_end_of_applying_a_patch_has_its_error(result: ExecResult, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        apply(result)


def test_patch_and_trusted_tests_are_sent_byte_for_byte():
    (command,) = apply(ended(stdout=b" M a.py\0"), patch=ODD, tests=ODD * 2).commands
    assert command.stdin == b"a.py\0" + b"caf\xe9\n" + b"caf\xe9\n" * 2
    assert (command.argv[5:7], command.argv[10]) == (["5", "1"], "10")
    assert command.timeout_s == 9


def test_sandbox_lost_while_applying_is_reported_as_lost():
    def lose(command: Command) -> ExecResult:
        raise SandboxLost("its node is gone")

    with pytest.raises(SandboxLost, match="its node is gone"):
        asyncio.run(apply_patch(ScriptedSandbox(lose), "", (), timeout_s=9))


def test_defect_while_applying_is_not_renamed():
    def fail(command: Command) -> ExecResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(apply_patch(ScriptedSandbox(fail), "", (), timeout_s=9))


def test_trusted_patch_is_sent_byte_for_byte_and_must_apply():
    sandbox = ScriptedSandbox(lambda command: ended())
    asyncio.run(apply_trusted_patch(sandbox, ODD, timeout_s=9))
    assert sandbox.commands[0].stdin == b"caf\xe9\n"
    refused = ScriptedSandbox(lambda command: ended(1, stderr="no such file\n"))
    with pytest.raises(PatchRefused, match=r"does not apply: no such file$"):
        asyncio.run(apply_trusted_patch(refused, "", timeout_s=9))


class Tree(ScriptedSandbox):
    """Prints a patch, whole or the part that a command asks for, as far as an exec may print."""

    def __init__(self, patch: bytes, spec: SandboxSpec = SPEC) -> None:
        super().__init__(self._print, spec)
        self.patch = patch

    def _print(self, command: Command) -> ExecResult:
        found = self.patch
        if part := re.search(r"\| tail -c \+(\d+) \| \{ head -c (\d+);", command.argv[2]):
            first, size = map(int, part.groups())
            assert first >= 1  # tail counts bytes from 1
            found = found[first - 1 : first - 1 + size]
        half = self.spec.limits.output_kib * 512
        shown = found if len(found) <= 2 * half else found[:half] + found[-half:]
        return ended(stdout=shown, stdout_bytes=len(found))


@pytest.mark.parametrize("size", [0, 1024, 1025, 2048, 5000])
def test_patch_longer_than_one_output_is_read_in_parts(size: int):
    patch = bytes(97 + index % 26 for index in range(size))
    tree = Tree(patch)
    assert asyncio.run(extract_patch(tree, make_task())) == patch.decode()
    assert len(tree.commands) == 1 + (-(-size // 1024) if size > 1024 else 0)


def test_patch_up_to_the_limit_is_read_and_a_larger_one_is_broken():
    settings = EnvironmentSettings(max_patch_kib=3)
    assert len(asyncio.run(extract_patch(Tree(b"x" * 3072), make_task(), settings))) == 3072
    with pytest.raises(BrokenTree, match="larger than 3 KiB"):
        asyncio.run(extract_patch(Tree(b"x" * 3073), make_task(), settings))


@pytest.mark.parametrize("intact", [False, True])
def test_text_that_is_not_utf8_is_read_again_in_binary_form(intact: bool):
    def answer(command: Command) -> ExecResult:
        return ended(stdout=b"GIT binary patch" if command.argv[6] == "-diff" else b"caf\xe9")

    sandbox = ScriptedSandbox(answer, SPEC)
    patch = asyncio.run(extract_patch(sandbox, make_task(), intact=intact))
    assert patch == "GIT binary patch"
    assert [command.argv[6] for command in sandbox.commands] == ["!diff", "-diff"]
    assert {command.argv[8] for command in sandbox.commands} == {"intact" if intact else ""}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ended(-1, timed_out=True), "^git did not read the tree within 60 s$"),
        (ended(91), r"^git cannot read the tree \(exit code 91\)$"),
        (ended(91, stderr=b"first\ncaf\xe9\n\n"), r"\(exit code 91: caf.\)$"),
    ],
)
def test_tree_that_git_cannot_read_is_broken(result: ExecResult, said: str):
    with pytest.raises(BrokenTree, match=said):
        asyncio.run(extract_patch(ScriptedSandbox(lambda command: result, SPEC), make_task()))


def test_sandbox_without_the_pristine_history_is_refused():
    sandbox = ScriptedSandbox(lambda command: ended(), dataclasses.replace(SPEC, mounts=()))
    with pytest.raises(RuntimeError, match="base_mounts"):
        asyncio.run(extract_patch(sandbox, make_task()))
