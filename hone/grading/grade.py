"""Grading: a fresh sandbox, the filtered patch, trusted tests, a verdict test by test.

GraderError   no verdict, and the patch did not cause it: the sandbox or the runner never came up
Verdict       everything else; whatever the patch can cause (it does not apply, it kills the test run, it
              hangs, it eats the memory, it takes the sandbox down) is a verdict that fails
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections import OrderedDict
from pathlib import Path

from hone.grading.apply import apply_patch
from hone.grading.errors import GraderError, PatchRefused
from hone.grading.integrity import scan_patch
from hone.grading.logs import BARE_NAMES, reads_pytest
from hone.grading.patch import FilteredPatch, filter_patch, parse_patch, test_paths
from hone.grading.place import Place, find_place
from hone.grading.rules import COLLECTED, EXACT, Rule
from hone.grading.run import ENV, REPORT_KIB, RUNNER_MOUNT, WHOLE_REPORT_KIB, Job, run_tests
from hone.grading.script import grade_by_script
from hone.grading.settings import GradingSettings
from hone.grading.verdict import expected_of, failed, make_verdict, read_report
from hone.sandbox.contract import Limits, Provider, ProviderUnavailable, Sandbox, SandboxLost, SandboxSpec
from hone.tasks.configuration import FILES, pytest_arguments
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.tasks.workspace import is_local
from hone.types import Task, Verdict

_DEFAULT_LIMITS = Limits()


async def grade(
    task: Task,
    patch: str,
    *,
    provider: Provider,
    cache: Path,
    settings: GradingSettings,
    limits: Limits = _DEFAULT_LIMITS,
) -> Verdict:
    """Grade one patch against the task's checks.

    Args:
        cache: of the tasks' repositories (`hone.tasks.workspace.prepare`).
        limits: of the sandbox.
    Raises:
        GraderError: there is no verdict, and the patch did not cause that.
    """
    if not task.checks.fail_to_pass:
        raise GraderError(f"task {task.id} names no test that the fix must make pass, so it cannot be graded")
    if task.checks.rule not in (*Rule, COLLECTED, EXACT):
        raise GraderError(f"task {task.id}: there is no rule {task.checks.rule!r}")
    filtered = await asyncio.to_thread(read_patch, task, patch, settings)
    if isinstance(filtered, Verdict):
        return filtered
    try:
        place = await find_place(task, cache, settings)
    except TaskError as error:
        raise GraderError(f"task {task.id} cannot be graded: {error}") from error
    spec = sandbox_spec(task, place, limits, _report_kib(task))
    for attempt in range(2):
        sandbox = await start(provider, spec)
        try:
            if task.checks.script:
                return await grade_by_script(sandbox, task, filtered, place, settings)
            return await _grade_in(sandbox, task, filtered, place, settings)
        except SandboxLost as lost:
            # A machine may fail once under any patch; a patch that takes two sandboxes down did it.
            if attempt:
                return failed(task.checks, f"the tests took their sandbox down, twice: {lost}", applied=True)
        finally:
            await sandbox.close()
    raise AssertionError("unreachable")


def read_patch(task: Task, patch: str, settings: GradingSettings) -> FilteredPatch | Verdict:
    """What of a patch may reach the tests; or the verdict, where it is refused or tampers."""
    if len(patch.encode("utf-8", "surrogateescape")) > settings.max_patch_kib * 1024:
        return failed(task.checks, f"the patch is larger than {settings.max_patch_kib} KiB")
    try:
        filtered = filter_patch(patch, test_paths(task))
        tampering = scan_patch(parse_patch(patch), task)
    except PatchRefused as refusal:
        return failed(task.checks, f"the patch was refused: {refusal}")
    if tampering is not None:
        return make_verdict(
            task.checks, {}, finished=False, tampered=tampering.evidence, log=tampering.evidence
        )
    return filtered


def sandbox_spec(task: Task, place: Place, limits: Limits, report_kib: int) -> SandboxSpec:
    return SandboxSpec(
        image=place.image,
        workdir=task.environment.workdir,
        layer=place.layer,
        env=ENV,
        mounts=(RUNNER_MOUNT, *place.mounts),
        limits=dataclasses.replace(limits, output_kib=max(limits.output_kib, report_kib)),
    )


async def start(provider: Provider, spec: SandboxSpec) -> Sandbox:
    """Raises GraderError."""
    try:
        return await provider.start(spec)
    except ProviderUnavailable as error:
        raise GraderError(f"no sandbox to grade in: {error}") from error


async def _grade_in(
    sandbox: Sandbox, task: Task, filtered: FilteredPatch, place: Place, settings: GradingSettings
) -> Verdict:
    checks = task.checks
    if checks.parser != BARE_NAMES and not reads_pytest(checks.parser):
        raise GraderError(
            f"task {task.id}: its tests are not pytest's ({checks.parser}), so that only a row with an "
            "evaluation script (edition 5) can be graded"
        )
    tests = patched_paths(checks.test_patch)
    if filtered.text or checks.test_patch:
        refusal = await apply_patch(
            sandbox,
            filtered.text,
            set(filtered.paths),
            settings,
            tests=checks.test_patch,
            test_paths=tests,
            clean=place.layer is not None,
        )
        if refusal is not None:
            return failed(checks, refusal)
    ran = await run_tests(sandbox, job_of(task, place), place, settings)
    return read_report(ran.output, ran.nonce, checks, ended=ran.ended, repo=task.environment.repo)


def job_of(task: Task, place: Place) -> Job:
    """The tests of a task, as the runner is told of them."""
    checks = task.checks
    named = [test.split("::")[0] for test in (*checks.fail_to_pass, *checks.pass_to_pass) if "::" in test]
    if len(named) < len(checks.fail_to_pass) + len(checks.pass_to_pass):  # some are names without a file
        named += [path for path in patched_paths(checks.test_patch) if path.endswith(".py")]
    return Job(
        workdir=task.environment.workdir,
        run_files=tuple(dict.fromkeys(named)),
        expected=expected_of(checks),
        timeout_s=checks.timeout_s,
        test_files=checks.test_files,
        trusted=tuple(path for path in test_paths(task) if path.endswith("/")),
        command=(*configured(task, place), *checks.command),
    )


def configured(task: Task, place: Place) -> tuple[str, ...]:
    """What the repository's own configuration of pytest says of how its tests are collected."""
    if not is_local(task.environment) or place.layer is None:
        return ()
    found = {name: place.layer / name for name in FILES}
    return pytest_arguments(
        {name: path.read_text("utf-8", "replace") for name, path in found.items() if path.is_file()}
    )


def patched_paths(patch: str) -> tuple[str, ...]:
    """The files that a trusted patch names. Raises GraderError."""
    try:
        return tuple(path for part in parse_patch(patch) for path in part.paths)
    except PatchRefused as refusal:
        raise GraderError(f"the task's own tests are no patch: {refusal}") from None


def _report_kib(task: Task) -> int:
    return WHOLE_REPORT_KIB if task.checks.script or expected_of(task.checks) is None else REPORT_KIB


class Grader:
    """Grades with bounded concurrency, each (task content, patch) once, in flight too.

    A GraderError is not remembered: the next caller tries again.
    """

    def __init__(
        self,
        provider: Provider,
        settings: GradingSettings,
        *,
        cache: Path,
        limits: Limits = _DEFAULT_LIMITS,
    ) -> None:
        self._provider, self._settings, self._cache, self._limits = provider, settings, cache, limits
        self._places = asyncio.Semaphore(settings.concurrency)
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()  # least recently used first
        self._in_flight: dict[
            str, tuple[asyncio.Lock, int]
        ] = {}  # key -> lock, callers that hold or await it

    async def grade(self, task: Task, patch: str) -> Verdict:
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
                            cache=self._cache,
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
