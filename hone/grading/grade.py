"""Grading: a fresh sandbox, the filtered patch, trusted tests, a verdict test by test.

GraderError   no verdict, and the patch did not cause it: the sandbox or the runner never came up
Verdict       everything else; whatever the patch can cause (it does not apply, it kills the test run, it
              hangs, it eats the memory, it takes the sandbox down) is a verdict that fails
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
import struct
from collections import OrderedDict
from pathlib import Path

from hone.grading.errors import GraderError, PatchRefused
from hone.grading.patch import filter_patch, is_protected, test_paths
from hone.grading.settings import GradingSettings
from hone.grading.verdict import judge, read_report
from hone.sandbox.contract import (
    Limits,
    Mount,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxLost,
    SandboxSpec,
)
from hone.tasks.formats import content_hash
from hone.types import Task, Verdict

RUNNER = "/srv/hone/grader"
REPORT_KIB = 256  # output that must come back whole: the runner's report
_DEFAULT_LIMITS = Limits()
_SANDBOX_ENV = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
# What git did is asked of git, so that a patch it reads otherwise than `filter_patch` is found out.
_APPLY = """
git apply --whitespace=nowarn - || exit 93
git status --porcelain=v1 -z --untracked-files=all --ignored=matching --no-renames
"""


async def grade(
    task: Task,
    patch: str,
    *,
    provider: Provider,
    workspace: Path,
    settings: GradingSettings,
    limits: Limits = _DEFAULT_LIMITS,
) -> Verdict:
    """Grade one patch against the task's checks.

    Args:
        workspace: the task's repository on the host (`hone.tasks.workspace.prepare`).
        limits: of the sandbox.
    Raises:
        GraderError: there is no verdict, and the patch did not cause that.
    """
    if len(patch.encode("utf-8", "surrogateescape")) > settings.max_patch_kib * 1024:
        return _failed(task, f"the patch is larger than {settings.max_patch_kib} KiB")
    try:
        filtered = filter_patch(patch, test_paths(task))
    except PatchRefused as refusal:
        return _failed(task, f"the patch was refused: {refusal}")
    spec = SandboxSpec(
        image=task.environment.image,
        workdir=task.environment.workdir,
        layer=workspace,
        env=_SANDBOX_ENV,
        mounts=(Mount(source=Path(__file__).parent / "inside", target=RUNNER),),
        limits=dataclasses.replace(limits, output_kib=max(limits.output_kib, REPORT_KIB)),
    )
    for attempt in range(2):
        sandbox = await _start(provider, spec)
        try:
            if filtered.text:
                refusal = await _apply(sandbox, filtered.text, set(filtered.paths), settings)
                if refusal is not None:
                    return _failed(task, refusal)
            return await _run_tests(sandbox, task, settings)
        except SandboxLost as lost:
            # A machine may fail once under any patch; a patch that takes two sandboxes down did it.
            if attempt:
                return _failed(task, f"the tests took their sandbox down, twice: {lost}")
        finally:
            await sandbox.close()
    raise AssertionError("unreachable")


async def _start(provider: Provider, spec: SandboxSpec) -> Sandbox:
    try:
        return await provider.start(spec)
    except ProviderUnavailable as error:
        raise GraderError(f"no sandbox to grade in: {error}") from error


async def _apply(sandbox: Sandbox, patch: str, paths: set[str], settings: GradingSettings) -> str | None:
    """Apply the patch; the reason, where it cannot be. Nothing of the repository is executed here."""
    try:
        result = await sandbox.exec(
            _APPLY, stdin=patch.encode("utf-8", "surrogateescape"), timeout_s=settings.slack_s
        )
    except SandboxLost as lost:
        raise GraderError(f"the sandbox was lost before any test ran: {lost}") from lost
    said = result.stderr.decode("utf-8", "replace").strip()
    if result.exit_code == 93:
        return f"the patch does not apply: {said}"
    if result.exit_code != 0:
        raise GraderError(f"git failed (exit code {result.exit_code}): {said}")
    if result.stdout_bytes != len(result.stdout):
        return "the patch changes too many files"
    changed = {entry[3:] for entry in result.stdout.decode("utf-8", "surrogateescape").split("\0") if entry}
    stray = sorted(path for path in changed if path.rstrip("/") not in paths or is_protected(path, set()))
    if stray:
        return f"git reads changes in the patch that its headers do not name: {', '.join(stray[:5])}"
    return None


async def _run_tests(sandbox: Sandbox, task: Task, settings: GradingSettings) -> Verdict:
    checks = task.checks
    expected = [*checks.fail_to_pass, *checks.pass_to_pass]
    job = {
        "workdir": task.environment.workdir,
        "test_files": dict(checks.test_files),
        "run_files": list(dict.fromkeys(test.split("::")[0] for test in expected)),
        "expected": expected,
        "command": list(checks.command),
        "timeout_s": checks.timeout_s,
    }
    body = json.dumps(job).encode()
    nonce = secrets.token_hex(16)
    result = await sandbox.exec(
        ["python3", f"{RUNNER}/hone_runner.py"],
        stdin=struct.pack("!I", len(body)) + body + nonce.encode(),
        timeout_s=checks.timeout_s + settings.slack_s,
    )
    ended = "timed out" if result.timed_out else f"exit code {result.exit_code}"
    if result.stderr:
        ended += f": {result.stderr[-500:].decode('utf-8', 'replace').strip()}"
    return read_report(result.stdout, nonce, checks.fail_to_pass, checks.pass_to_pass, ended=ended)


def _failed(task: Task, reason: str) -> Verdict:
    return judge(task.checks.fail_to_pass, task.checks.pass_to_pass, {}, finished=False, log=reason)


class Grader:
    """Grades with bounded concurrency, each (task content, patch) once, in flight too.

    A GraderError is not remembered: the next caller tries again.
    """

    def __init__(
        self, provider: Provider, settings: GradingSettings, *, limits: Limits = _DEFAULT_LIMITS
    ) -> None:
        self._provider, self._settings, self._limits = provider, settings, limits
        self._places = asyncio.Semaphore(settings.concurrency)
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()  # least recently used first
        self._in_flight: dict[
            str, tuple[asyncio.Lock, int]
        ] = {}  # key -> lock, callers that hold or await it

    async def grade(self, task: Task, patch: str, workspace: Path) -> Verdict:
        """Raises GraderError."""
        key = hashlib.sha256(
            f"{content_hash(task)}\0".encode() + patch.encode("utf-8", "surrogateescape")
        ).hexdigest()
        lock, callers = self._in_flight.get(key, (asyncio.Lock(), 0))
        self._in_flight[key] = (lock, callers + 1)
        try:
            async with lock:
                if key not in self._verdicts:
                    async with self._places:
                        self._verdicts[key] = await grade(
                            task,
                            patch,
                            provider=self._provider,
                            workspace=workspace,
                            settings=self._settings,
                            limits=self._limits,
                        )
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        finally:
            lock, callers = self._in_flight.pop(key)
            if callers > 1:
                self._in_flight[key] = (lock, callers - 1)
            else:
                while len(self._verdicts) > self._settings.cached_verdicts:
                    self._verdicts.popitem(last=False)
