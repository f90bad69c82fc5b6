"""Run tests with the trusted runner in a grading sandbox, and read its report."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.environment import TaskEnvironment
from hone.environment.environment import GIT_ENV
from hone.grading.commands import Suite
from hone.grading.errors import GraderError
from hone.grading.in_sandbox.hone_tally import HELLO, LETTERS, UNUSABLE
from hone.grading.plan import TestJob
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import Limits, Mount, Provider, ProviderUnavailable, Sandbox, SandboxSpec
from hone.types import ControlCounts, TestStatus
from hone.utils import processes

RUNNER = "/srv/hone/grader"
RUNNER_MOUNTS = (
    Mount(source=Path(__file__).parent / "in_sandbox", target=RUNNER),
    Mount(source=Path(processes.__file__), target="/srv/hone/processes/hone_processes.py"),
)
REPORT_KIB = 256  # output that must come back complete: the runner's report on named tests
WHOLE_REPORT_KIB = 8192  # the same, on all collected tests, or a script's log
ENV = {
    **GIT_ENV,
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
}
# An image's variables may name the repository's directories. PATH loses those, and what names modules that
# Python would import is set aside until the test process starts. -p: bash reads no file of its own first.
_SET_ASIDE = (
    "/bin/bash", "-p", "-c",
    """
    cd -P . && tree=$PWD outside=
    IFS=:
    for folder in $PATH; do
        if [[ $folder == /* ]] && cd -P -- "$folder" 2>/dev/null && [[ $PWD/ != "$tree"/* ]]; then
            outside+=${outside:+:}$folder
        fi
    done
    unset IFS
    seed=$PYTHONHASHSEED
    for name in PATH ${!PYTHON@}; do export "HONE_ASIDE_$name=${!name}"; unset "$name"; done
    cd "$tree" && export PATH=$outside PYTHONHASHSEED=$seed PYTHONDONTWRITEBYTECODE=1 && exec "$@"
    """,
    "bash",
)  # fmt: skip
_ERROR = re.compile(r"[A-Z]\w*(?:Error|Exception)\b|\berror: |^ERROR: ")
_STATUS = {letter: TestStatus(status) for status, letter in LETTERS.items()}


RunJob = Callable[[Sandbox, TestJob, TaskEnvironment], Awaitable[Sequence["TestRun"]]]
"""Runs a job in a sandbox with the patch applied. Raises GraderError and SandboxLost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """The trusted files of one run of a job, over those of the job."""

    texts: Mapping[str, str] = field(default_factory=dict[str, str])  # by path
    files: tuple[str, ...] | None = None  # the test files to run; None: those of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """The tests of one run and how it ended."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    statuses: Mapping[str, TestStatus]  # by test id; a test that is absent is missing
    finished: bool = True  # the session ran to its end
    tampered: str | None = None  # evidence, one sentence
    fault: str | None = (
        None  # what may have gone wrong without any patch: no test ran, or Hone's code crashed
    )
    crashed: bool = False  # in Hone's own code
    log: str = ""  # the end of the output, or why there was none
    seconds: float = 0.0
    memory_mib: float = 0.0
    controls: ControlCounts = field(default_factory=ControlCounts)
    by_log: bool = False  # the statuses are those of a log, by the names of its parser
    suite: Suite = Suite.PYTEST
    titles: Mapping[str, str] = field(default_factory=dict[str, str])  # see `hone.grading.titles`
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])  # of a Harbor task's verifier


async def start_sandbox(
    provider: Provider, workdir: str, environment: TaskEnvironment, limits: Limits, *, whole_report: bool
) -> Sandbox:
    """Start a fresh sandbox for tests. Raises GraderError."""
    report_kib = WHOLE_REPORT_KIB if whole_report else REPORT_KIB
    spec = SandboxSpec(
        image=environment.image,
        workdir=workdir,
        layer=environment.layer,
        env=ENV,
        mounts=(*RUNNER_MOUNTS, *environment.mounts),
        limits=dataclasses.replace(limits, output_kib=max(limits.output_kib, report_kib)),
    )
    try:
        return await provider.start(spec)
    except ProviderUnavailable as error:
        raise GraderError(f"no sandbox to grade in: {error}") from error


async def run_tests(
    sandbox: Sandbox,
    job: TestJob,
    environment: TaskEnvironment,
    settings: GradingSettings,
    editions: Sequence[Edition] = (Edition(),),
) -> list[TestRun]:
    """Run the job once for each edition, in a process of its own that never has the text of another edition.

    Raises:
        GraderError: the runner does not start.
        SandboxLost: the sandbox is gone.
    """
    edited = set[str].intersection(*(set(edition.texts) for edition in editions))
    fields = {
        **dataclasses.asdict(job),
        "test_files": {path: text for path, text in job.test_files.items() if path not in edited},
        "edited": sorted(edited),
        "runs": len(editions),
        "paths": environment.paths,
        "sites": environment.sites,
        "bare": environment.bare and job.python is None,
        "own": job.own,
    }
    runs = [
        {"texts": dict(each.texts), "run_files": each.files or job.run_files, "only": each.files}
        for each in editions
    ]
    nonce = secrets.token_hex(16)
    wrapper = () if job.python else environment.wrapper
    aside = _SET_ASIDE if environment.image != "host" or job.python else ()
    result = await sandbox.exec(
        [*wrapper, *aside, job.python or environment.python, "-S", f"{RUNNER}/hone_start.py"],
        stdin=_framed(fields) + nonce.encode() + _framed(runs),
        timeout_s=job.timeout_s * len(editions) + settings.slack_s,
        env=job.env,
    )
    return read_report(result.stdout, nonce, job, result.ending, runs=len(editions))


def _framed(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack("!I", len(body)) + body


def read_report(output: bytes, nonce: str, job: TestJob, ended: str, *, runs: int = 1) -> list[TestRun]:
    """Return the runs that the runner's standard output reports.

    Output without the runner's greeting raises GraderError: the runner did not start. A greeting without
    exactly one report framed by `nonce` means that the code under test ended the runner, or that the runner
    crashed: nothing passed.

    Args:
        ended: how the runner's command ended, for the log.
    """
    if output.startswith(UNUSABLE):
        reason = output.removeprefix(UNUSABLE).decode("utf-8", "replace").strip()
        raise GraderError(f"the test runner cannot run in this environment: {reason}")
    if not output.startswith(HELLO):
        raise GraderError(
            f"the test runner did not start ({ended}): {output[:200].decode('utf-8', 'replace')!r}"
        )
    frame = nonce.encode() + b" "
    reports = [line for line in output.split(b"\n") if line.startswith(frame)]
    if len(reports) != 1:
        ending = f"the test run ended without a report ({ended})"
        return [TestRun(statuses={}, finished=False, fault=ending, log=ending)] * runs
    return [_read_run(report, job) for report in json.loads(reports[0][len(frame) :])]


def _read_run(report: Mapping[str, Any], job: TestJob) -> TestRun:
    letters = report["statuses"]
    pairs = letters.items() if job.reported is None else zip(job.reported, letters, strict=True)
    statuses = {test: _STATUS[letter] for test, letter in pairs}
    return TestRun(
        statuses=statuses,
        finished=report["finished"],
        tampered=report["tampered"],
        fault=None if report["timed_out"] else _fault_of(report, statuses.values()),
        crashed=report["crashed"] is not None,
        log=_log_of(report),
        seconds=report["seconds"],
        memory_mib=report["memory_kib"] / 1024,
        suite=job.suite,
        titles=report["titles"],
    )


def _fault_of(report: Mapping[str, Any], statuses: Collection[TestStatus]) -> str | None:
    """Return what may go wrong without any patch, too; only a run of the reference patch can tell."""
    lines = [line.strip() for line in report["log"].splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    reason = (errors or lines or ["it printed nothing"])[-1]
    if report["crashed"] is not None:
        return f"the test runner failed: {report['crashed']}"
    if not report["finished"]:
        return f"the test session did not run to its end (exit code {report['exit_code']}): {reason}"
    if all(status in (TestStatus.MISSING, TestStatus.ERROR) for status in statuses):
        return f"no test ran: {reason}"
    return None


def _log_of(report: Mapping[str, Any]) -> str:
    if report["timed_out"]:
        return f"{report['log']}\nthe tests were stopped after {report['seconds']:.0f} s"
    if not report["finished"]:
        return f"{report['log']}\nthe test session did not run to its end (exit code {report['exit_code']})"
    return report["log"]
