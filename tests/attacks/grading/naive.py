"""A naive grader, the positive control of every attack: an attack that cannot fool it proves nothing.

It believes whatever it can read, as simple graders do:

    exit code    pytest ended with 0
    output       the first count in the output, or the lines of single tests, report passes
    no failure   the run ended, and a test that must be fixed is not listed as failed
    records      a plugin in the test process wrote "passed" to an inherited descriptor, without a key
    no result    there is no summary, no records, or the run was killed: "infrastructure failure, try again"
    escape       the patch wrote to git's directory, or made a link out of the repository
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.contract import Provider, SandboxLost
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import GIT_ENV, prepare
from hone.types import Task
from tests.attacks.grading.attack import Attack, text_of

ENDLESS_S = 10.0  # limit of a run whose task has a short timeout, because the attack never ends
HERE = "/tmp/naive"

REPORTER = """
import json, os
def pytest_runtest_logreport(report):
    os.write(3, json.dumps(["phase", report.nodeid, report.when, report.outcome]).encode() + b"\\n")
"""
PLACE_TESTS = """
import json, os, sys
for name, text in json.load(open(sys.argv[1])).items():
    if not os.path.lexists(name):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w").write(text)
"""
FIND_ESCAPES = """
import os
for place, folders, files in os.walk("."):
    if place == ".":
        folders[:] = [name for name in folders if name != ".git"]
    for name in folders + files:
        path = os.path.join(place, name)
        inside = (os.path.realpath(path) + "/").startswith(os.getcwd() + "/")
        if os.path.islink(path) and not inside:
            print("NAIVE escape", path)
configured = "./x" in open(".git/config").read()
if os.path.exists(".git/hooks/post-checkout") or os.path.exists(".GIT") or configured:
    print("NAIVE escape .git")
"""
START = """
import runpy, site
site.addsitedir(".")
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""
RUN = f"""cd /testbed
git apply --whitespace=nowarn {HERE}/patch || patch -s -f -p1 < {HERE}/patch || exit 99
python3 -I -c "$FIND_ESCAPES"
python3 -I -c "$PLACE_TESTS" {HERE}/tests
export PATH=/testbed:/testbed/bin:$PATH PYTHONPATH=/testbed:{HERE}
if [ -s {HERE}/script ]; then bash {HERE}/script 3>{HERE}/records 2>&1; else
    pytest --version >/dev/null 2>&1 && [ -x pytest ] && exec pytest
    python3 -c "$START" -s -rA -p reporter -p no:cacheprovider tests 3>{HERE}/records 2>&1
fi
"""
_COUNT = re.compile(r"\b(\d+) (passed|failed)\b")


def fooled_readers(
    attacks: Mapping[str, Attack], scratch: Path, *, concurrency: int = 3
) -> dict[str, set[str]]:
    """Return attack -> the readers of the naive grader that it fools."""
    slots = asyncio.Semaphore(concurrency)

    async def one(provider: Provider, name: str) -> set[str]:
        attack = attacks[name]
        async with slots:
            patch = text_of(attack, scratch / "workspaces", scratch)
            return await _grade(provider, attack.task, patch, prepare(attack.task, scratch / "workspaces"))

    async def run() -> list[set[str]]:
        async with make_provider(SandboxSettings()) as provider:
            return await asyncio.gather(*(one(provider, name) for name in attacks))

    return dict(zip(attacks, asyncio.run(run()), strict=True))


async def _grade(provider: Provider, task: Task, patch: str, workspace: Path) -> set[str]:
    files = {
        "patch": patch,
        "tests": json.dumps(dict(task.checks.test_files)),
        "script": task.checks.script,
        "reporter.py": REPORTER,
        "records": "",
    }
    code = {"PLACE_TESTS": PLACE_TESTS, "FIND_ESCAPES": FIND_ESCAPES, "START": START}
    async with await provider.start(SandboxSpec(layer=workspace, env={**GIT_ENV, **code})) as sandbox:
        try:
            for name, text in files.items():
                await sandbox.write(f"{HERE}/{name}", text.encode("utf-8", "surrogateescape"))
            result = await sandbox.exec(["bash", "-c", RUN], timeout_s=max(task.checks.timeout_s, ENDLESS_S))
            records = (await sandbox.read(f"{HERE}/records")).decode("utf-8", "replace")
        except SandboxLost:
            return {"no result"}
    return _believe(task, result.text, None if result.timed_out else result.exit_code, records)


def _believe(task: Task, output: str, exit_code: int | None, records: str) -> set[str]:
    wanted, script = task.checks.fail_to_pass, bool(task.checks.script)
    count = _COUNT.search(output)
    finished = exit_code in (0, 1) and (count or re.search(r"^(?:OK|FAILED) ?", output, re.MULTILINE))
    passed = [
        test
        for test in wanted
        if re.search(rf"PASSED {re.escape(test)}\b|{re.escape(test)} \.\.\. ok", output)
    ]
    failed = [
        test
        for test in wanted
        if re.search(rf"(?:FAILED|ERROR) {re.escape(test)}\b|{re.escape(test)} \.\.\. (?:FAIL|ERROR)", output)
    ]
    recorded = [line for line in records.split("\n") if '"call", "passed"' in line]
    fooled = {
        "exit code": exit_code == 0 and not script,
        "output": bool(passed) or (count is not None and count[2] == "passed"),
        "no failure": bool(finished) and len(failed) < len(wanted),
        "records": any(f'"{test}"' in line for line in recorded for test in wanted),
        "no result": not finished or not (records or script),
        "escape": "NAIVE escape" in output,
    }
    return {reader for reader, believes in fooled.items() if believes}
