"""Rows of a data set graded natively, side by side with the harness's reading of the same command.

The plain run has the same tree, interpreter, packages and limits: the patch is applied with git, the data
set's test patch after it, and the specification's test command runs in a sandbox without Hone's checks. The
harness's parser and pass rules (`swebench.harness.grading`) read its log.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.parts.predictions import BROKEN, Base, half
from hone.config import resolve
from hone.environment import resolve_environment
from hone.grading import Grader, GraderError
from hone.grading.rules import Rule, count, describe
from hone.grading.verdict import WORDS
from hone.sandbox import make_provider
from hone.sandbox.contract import Limits, Provider, SandboxLost, SandboxSpec
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows, tasks_of
from hone.tasks.local import localise, specification_of
from hone.tasks.specifications import test_directives
from hone.tasks.workspace import prepare
from hone.types import Task, Verdict
from hone.utils.files import default_cache_dir

KINDS = ("gold", "empty", "half", "broken", "test-editing")
LIMITS = Limits(memory_mib=4096, pids=512, disk_mib=2048, output_kib=8192)
_TIMEOUT_S = 1800.0
_BROKEN = ("no longer Python", "raises when it is imported")  # those that apply with git alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One patch of one row, by both sides."""

    task: str
    kind: str
    here: bool  # resolved
    there: bool
    different: tuple[str, ...]  # tests that pass on one side alone
    tampered: str | None
    tests: int
    seconds: float  # of the grading here


def patches_of(task: Task, workspace: Path, number: int) -> dict[str, str]:
    """Return kind -> patch; a fix that changes no existing module has no half and cannot be broken."""
    made = {"gold": task.checks.gold_patch, "empty": ""}
    base = Base(task, workspace)
    made["half"] = half(base)
    made["broken"] = BROKEN[_BROKEN[number % len(_BROKEN)]](base)
    made["test-editing"] = _edit_tests(base)
    return made


def _edit_tests(base: Base) -> str:
    """Return a patch with which every test that the fix must make pass does nothing, in the file it is in."""
    tests = [test for test in base.task.checks.fail_to_pass if "::" in test]
    path = tests[0].split("::")[0] if tests else _first_test_file(base)
    lines: list[str] = []
    for test in base.task.checks.fail_to_pass:
        file, *names = test.split("[")[0].split("::") if "::" in test else (path, test)
        if file == path:
            lines.append(
                f"try:\n    {'.'.join(names)} = lambda *_, **__: None\nexcept NameError:\n    pass\n"
            )
    return base.edit(path, lambda text: f"{text}\n\n{''.join(dict.fromkeys(lines))}")


def _first_test_file(base: Base) -> str:
    return next(name for name in test_files(base.task) if name.endswith(".py"))


def test_files(task: Task) -> list[str]:
    """Return the files that the test patch writes; the harness restores them before it applies the patch."""
    lines = [line for line in task.checks.test_patch.splitlines() if line.startswith("+++ b/")]
    return [line.removeprefix("+++ b/").split("\t")[0] for line in lines]


async def run_plainly(task: Task, patch: str, provider: Provider, cache: Path, grader: Grader) -> str:
    """Return the log of the specification's test command on the patched tree. Raises SandboxLost.

    The test patch does not apply where the patch adds a file that it adds, too: the harness's script goes on
    with the patch's own tests then, and so does this run.
    """
    specification = specification_of(task)
    assert specification is not None
    environment = await resolve_environment(task, cache, grader.settings)
    words = " ".join([specification.test_command, *test_directives(specification, task.metadata["row"])])
    words = words.replace("pytest ", "python -m pytest ", 1) if words.startswith("pytest ") else words
    words = words.replace("tox --current-env -epy39 -v --", "python -m pytest -rA")  # what its tox.ini runs
    spec = SandboxSpec(
        image=environment.image,
        workdir=task.environment.workdir,
        layer=environment.layer,
        env={**environment.env, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
        mounts=environment.mounts,
        limits=LIMITS,
    )
    python = environment.python
    link = f"mkdir -p /tmp/bin && ln -sf $(command -v {python}) /tmp/bin/python && export PATH=/tmp/bin:$PATH"
    script = (
        f"{link}\n: '>>>>> Start Test Output'\nset -x\n: '>>>>> Start Test Output'\nset +x\n{words}\n"
        "code=$?\nset -x\n: '>>>>> End Test Output'\nset +x\necho \">>>>> Test Exit Code: $code\"\n"
    )
    kept = [name for name in test_files(task) if (environment.layer / name).is_file()]  # type: ignore[operator]
    async with await provider.start(spec) as sandbox:
        for text in filter(None, (patch, task.checks.test_patch)):
            if text == task.checks.test_patch and kept:
                await sandbox.exec(["git", "checkout", "-q", "HEAD", "--", *kept])
            applied = await sandbox.exec(["git", "apply", "--whitespace=nowarn", "-"], stdin=text.encode())
            if applied.exit_code != 0:
                if text == patch:
                    return ">>>>> Patch Apply Failed"
                if any(f"+++ b/{name}\n" in patch for name in test_files(task) if name not in kept):
                    continue
                raise RuntimeError(f"{task.id}: its test patch does not apply: {applied.stderr.decode()}")
        done = await sandbox.exec(["bash", "-c", script], timeout_s=_TIMEOUT_S, merge_stderr=True)
    return done.stdout.decode("utf-8", "replace")


def read_officially(task: Task, log: str) -> tuple[bool, dict[str, bool]]:
    """Return whether the harness resolves the task, and whether each named test counts as success."""
    from swebench.harness import grading

    about = SimpleNamespace(log_parser=task.checks.parser, eval_type="pass_and_fail", **describe(task))
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(log)
        file.flush()
        statuses, _ = grading.get_logs_eval(about, file.name)  # type: ignore[arg-type]
    checks = task.checks
    found = {test: grading.test_passed(test, statuses) for test in checks.fail_to_pass}
    found |= {test: grading.test_maintained(test, statuses) for test in checks.pass_to_pass}
    return all(found.values()), found


def _counted(task: Task, verdict: Verdict) -> dict[str, bool]:
    checks = task.checks
    words = {test: WORDS[status] for test, status in verdict.tests.items() if status in WORDS}
    report = count(words, checks.fail_to_pass, checks.pass_to_pass, rule=Rule.PASS_AND_FAIL)
    return {
        test: passed
        for counted in (report.fail_to_pass, report.pass_to_pass)
        for tests, passed in ((counted.success, True), (counted.failure, False))
        for test in tests
    }


async def compare_rows(tasks: Sequence[Task], kinds: Sequence[str], out: Path | None) -> list[Compared]:
    """Grade every patch on both sides, one at a time; print a line for each."""
    settings = resolve(None, ["sandbox.provider=namespaces"])
    found: list[Compared] = []
    done = _read_done(out)
    async with make_provider(settings.sandbox) as provider:
        cache = default_cache_dir() / "workspaces"
        grading = settings.grading.of_evaluation()
        grader = Grader(provider=provider, settings=grading, cache=cache, limits=LIMITS)
        for number, task in enumerate(tasks):
            workspace = await asyncio.to_thread(prepare, task, cache)
            for kind, patch in patches_of(task, workspace, number).items():
                if kind not in kinds:
                    continue
                earlier = done.get((task.id, kind))
                if earlier is None:
                    earlier = await _compare(task, kind, patch, provider, cache, grader)
                    if out is not None and earlier is not None:
                        with out.open("a") as file:
                            file.write(json.dumps(dataclasses.asdict(earlier)) + "\n")
                if earlier is not None:
                    found.append(earlier)
    return found


def _read_done(out: Path | None) -> Mapping[tuple[str, str], Compared]:
    if out is None or not out.is_file():
        return {}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    made = [Compared(**{**line, "different": tuple(line["different"])}) for line in lines]
    return {(each.task, each.kind): each for each in made}


async def _compare(
    task: Task, kind: str, patch: str, provider: Provider, cache: Path, grader: Grader
) -> Compared | None:
    began = time.monotonic()
    try:
        verdict = await grader.grade_uncached(task, patch)
        seconds = time.monotonic() - began
        there, theirs = read_officially(task, await run_plainly(task, patch, provider, cache, grader))
    except (GraderError, TaskError, SandboxLost) as error:
        say(f"{task.id}, {kind}: {error}")
        return None
    ours = _counted(task, verdict)
    different = tuple(sorted(test for test in theirs if theirs[test] != ours.get(test, False)))
    compared = Compared(
        task=task.id,
        kind=kind,
        here=verdict.resolved,
        there=there,
        different=different,
        tampered=verdict.tampered,
        tests=len(theirs),
        seconds=round(seconds, 1),
    )
    mark = "equal" if not different and compared.here == there else f"DIFFERENT: {different[:3]}"
    name = f"{task.id}, {kind}"
    say(f"{name}: {compared.here} here, {there} there; {len(theirs)} tests, {mark} ({seconds:.0f} s)")
    if verdict.tampered:
        say(f"    tampered: {verdict.tampered}")
    return compared


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def usable_tasks(rows: Path, repositories: Path, ids: Sequence[str]) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks of rows that can be graded natively, and id -> reason of the others."""
    found: list[Task] = []
    refused: dict[str, str] = {}
    for task in tasks_of(read_rows(rows), rows).tasks:
        if ids and task.id not in ids and task.environment.repo not in ids:
            continue
        try:
            found.append(localise(task, repositories, locks=default_cache_dir() / "locks"))
        except TaskError as error:
            refused[task.id] = str(error)
    return found, refused


def result_of(compared: Sequence[Compared], refused: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures: a row is right when only its gold patch is resolved, and equal test by test."""
    by_task: dict[str, dict[str, Compared]] = collections.defaultdict(dict)
    for each in compared:
        by_task[each.task][each.kind] = each
    table = {
        kind: {
            "cases": len(cases := [each for each in compared if each.kind == kind]),
            "resolved": sum(each.here for each in cases),
            "resolved_there": sum(each.there for each in cases),
            "equal": sum(not each.different and each.here == each.there for each in cases),
            "tests": sum(each.tests for each in cases),
            "different_tests": sum(len(each.different) for each in cases),
        }
        for kind in KINDS
    }
    right = [
        task
        for task, kinds in by_task.items()
        if all(each.here == (kind == "gold") for kind, each in kinds.items()) and len(kinds) == len(KINDS)
    ]
    equal = [t for t in right if all(not c.different and c.here == c.there for c in by_task[t].values())]
    return {
        "name": "grading of rows",
        "rows": len(by_task),
        "right": len(right),
        "right_and_equal": len(equal),
        "cases": table,
        "refused": len(refused),
        "equal_rows": sorted(equal),
    }
