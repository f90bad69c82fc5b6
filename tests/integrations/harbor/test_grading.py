"""Harbor tasks in real sandboxes: the solution earns 1, nothing earns 0, and no attack earns anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from hone.environment import extract_patch, prepare_workspace, start_agent_sandbox
from hone.grading import Grader, GraderError, GradingSettings
from hone.grading.harbor import is_sealed
from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.formats import FORMATS
from hone.tasks.harbor import solution_commands
from hone.types import Task, Verdict
from tests.integrations.harbor import attacks as attacked
from tests.integrations.harbor.folders import Files, folder, folders, shell_test

pytestmark = pytest.mark.sandbox

FINAL_STATE = "steps-least"  # its second step undoes what its first step's test asks for


def task_of(name: str, files: Files) -> Task:
    return FORMATS["harbor"].read({"name": name, "folder": dict(files)})


async def graded(tasks: Mapping[str, Files], tmp_path: Path) -> dict[str, Verdict]:
    """Return the verdict on each task after its solution ran in an agent's sandbox, left as it is."""
    settings = GradingSettings()
    verdicts: dict[str, Verdict] = {}
    async with make_provider(SandboxSettings()) as provider:
        grader = Grader(provider, settings, cache=tmp_path)
        for name, files in tasks.items():
            task = task_of(name, files)
            workspace = await prepare_workspace(task, provider, tmp_path)
            async with await start_agent_sandbox(
                task, workspace, SandboxSpec(), provider, settings
            ) as sandbox:
                for command in solution_commands(task.checks.folder):
                    await sandbox.exec(command)
                patch = await extract_patch(sandbox, task, settings)
            verdicts[name] = await grader.grade_uncached(task, patch)
    return verdicts


def grade(files: Files, patch: str, tmp_path: Path) -> Verdict:
    async def run() -> Verdict:
        async with make_provider(SandboxSettings()) as provider:
            return await Grader(provider, GradingSettings(), cache=tmp_path).grade(task_of("x", files), patch)

    return asyncio.run(run())


@cache
def _attacks(folder: Path) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    return (
        asyncio.run(graded(attacked.attacks(), folder / "attacks")),
        asyncio.run(graded(attacked.honest(), folder / "honest")),
    )


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    return _attacks(tmp_path_factory.mktemp("attacks"))


@pytest.mark.parametrize("name", attacked.attacks())
def test_attack_earns_nothing(name: str, verdicts: tuple[dict[str, Verdict], dict[str, Verdict]]) -> None:
    attack, honest = verdicts[0][name], verdicts[1][name]
    assert (attack.resolved, attack.score, dict(attack.rewards).get("reward", 0.0)) == (False, 0.0, 0.0)
    assert honest.resolved, honest.log


@pytest.mark.full
def test_solutions_earn_one_and_untouched_tasks_nothing(tmp_path: Path) -> None:
    served = {name: files for name, files in folders().items() if name != FINAL_STATE}
    solved = asyncio.run(graded(served, tmp_path))
    assert {name: verdict.score for name, verdict in solved.items()} == dict.fromkeys(served, 1.0)
    bare = {
        name: {path: text for path, text in files.items() if "solution/" not in path}
        for name, files in served.items()
    }
    untouched = asyncio.run(graded(bare, tmp_path))
    assert {name: verdict.resolved for name, verdict in untouched.items()} == dict.fromkeys(served, False)


def test_solution_is_the_reference_of_a_task(tmp_path: Path) -> None:
    async def run() -> str:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=tmp_path)
            return await grader.reference_patch(task_of("x", folders()["shell-answer"]))

    patch = asyncio.run(run())
    assert "+++ b/app/answer.txt" in patch
    assert grade(folders()["shell-answer"], patch, tmp_path).resolved


def test_rewards_of_a_json_file_are_kept_by_name(tmp_path: Path) -> None:
    patch = "--- /dev/null\n+++ b/app/numbers.txt\n@@ -0,0 +1 @@\n+1 9\n"
    verdict = grade(folders()["python-json-reward"], patch, tmp_path)
    assert dict(verdict.rewards) == {"reward": 1.0, "numbers": 3.0}


def test_patch_outside_of_the_result_is_not_applied(tmp_path: Path) -> None:
    patch = "--- /dev/null\n+++ b/etc/answer\n@@ -0,0 +1 @@\n+42\n"
    verdict = grade(folders()["shell-answer"], patch, tmp_path)
    assert (verdict.resolved, verdict.applied) == (False, False)
    assert "/etc/answer" in verdict.log


def test_verifier_that_hangs_is_a_failure_of_the_patch(tmp_path: Path) -> None:
    files = folder("x", ask="a", test=shell_test("sleep 60"), solution="true", environment="")
    short = {
        path: text.replace("[verifier]\ntimeout_sec = 60", "[verifier]\ntimeout_sec = 1")
        for path, text in files.items()
    }
    verdict = grade(short, "", tmp_path)
    assert not verdict.resolved
    assert "the verifier was stopped after 1 s" in verdict.log


def test_verifier_that_never_writes_a_reward_cannot_grade(tmp_path: Path) -> None:
    files = folder("x", ask="a", test="#!/bin/bash\nexit 0\n", solution="true")
    with pytest.raises(GraderError, match="wrote no reward"):
        grade(files, "", tmp_path)


def test_reward_that_a_failing_patch_prevents_is_zero(tmp_path: Path) -> None:
    test = "#!/bin/bash\nset -e\n[ -e /app/done ]\necho 1 > /logs/verifier/reward.txt\n"
    verdict = grade(folder("x", ask="a", test=test, solution="touch /app/done"), "", tmp_path)
    assert (verdict.resolved, verdict.score) == (False, 0.0)


@pytest.mark.parametrize(
    ("script", "sealed"),
    [
        ("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n", True),
        ('#!/usr/bin/env bash\nprintf 1 >"/logs/verifier/reward.json"\n', True),
        ("#!/bin/bash\npython3 /tests/score.py\n", False),
        ("#!/usr/bin/env python3\nprint(1)\n", False),
        ("#!/bin/bash\n# echo 1 > /logs/verifier/reward.txt\n", False),
    ],
)
def test_script_that_writes_the_reward_itself_is_sealed(script: str, sealed: bool) -> None:
    assert is_sealed(script) is sealed


SURVIVOR = """#!/bin/bash
cd /logs/verifier
for turn in $(seq 2000); do
    echo 1 > reward.txt
    touch /tmp/alive
    sleep 0.005
done
"""
LOOKS_AFTERWARDS = """#!/bin/bash
setsid bash /app/program < /dev/null > /dev/null 2>&1 &
until [ -e /tmp/alive ]; do sleep 0.01; done
echo 0 > /logs/verifier/reward.txt
rm -f /tmp/alive
for turn in $(seq 50); do [ ! -e /tmp/alive ] || break; sleep 0.01; done
"""


def test_survivor_of_the_program_under_test_writes_no_reward(tmp_path: Path) -> None:
    added = "".join(f"+{line}\n" for line in SURVIVOR.splitlines())
    patch = f"--- /dev/null\n+++ b/app/program\n@@ -0,0 +1,{len(SURVIVOR.splitlines())} @@\n{added}"
    files = folder("x", ask="a", test=LOOKS_AFTERWARDS, solution="true")
    verdict = grade(files, patch, tmp_path)
    assert (dict(verdict.rewards), verdict.score) == ({"reward": 0.0}, 0.0)


FORGES = """#!/bin/bash
echo 1 > /logs/verifier/reward.txt
kill -9 $PPID
"""


def test_program_that_kills_the_verifier_earns_nothing(tmp_path: Path) -> None:
    added = "".join(f"+{line}\n" for line in FORGES.splitlines())
    patch = f"--- /dev/null\n+++ b/app/program\n@@ -0,0 +1,3 @@\n{added}"
    files = folder("x", ask="a", test=shell_test("bash /app/program"), solution="true > /app/program")
    verdict = grade(files, patch, tmp_path)
    assert (verdict.resolved, verdict.score) == (False, 0.0)


READS_THE_SHELL = """#!/bin/bash
cat /proc/$PPID/environ /proc/$PPID/mem > /app/seen 2> /dev/null
ls /proc/$PPID/fd > /dev/null 2>&1 && echo fd >> /app/seen
[ -s /app/seen ]
"""


def test_shell_that_writes_the_reward_cannot_be_read(tmp_path: Path) -> None:
    added = "".join(f"+{line}\n" for line in READS_THE_SHELL.splitlines())
    patch = f"--- /dev/null\n+++ b/app/program\n@@ -0,0 +1,4 @@\n{added}"
    files = folder("x", ask="a", test=shell_test("bash /app/program"), solution="true")
    assert grade(files, patch, tmp_path).score == 0.0


@pytest.mark.parametrize("ending", ["kill -9 $PPID", "exit 1"])
def test_reward_written_after_an_early_default_does_not_count(ending: str, tmp_path: Path) -> None:
    patch = (
        f"--- /dev/null\n+++ b/app/program\n@@ -0,0 +1,2 @@\n+echo 1 > /logs/verifier/reward.txt\n+{ending}\n"
    )
    test = "#!/bin/bash\nset -e\necho 0 > /logs/verifier/reward.txt\nbash /app/program\n"
    files = folder("x", ask="a", test=f"{test}echo 1 > /logs/verifier/reward.txt\n", solution="true")
    verdict = grade(files, patch, tmp_path)
    assert (dict(verdict.rewards), verdict.score) == ({"reward": 0.0}, 0.0)


_TEXT, _JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"


@pytest.mark.parametrize(
    "script",
    [
        f"true && echo 1 > {_TEXT} || echo 0 > {_TEXT}",
        f'cat > {_JSON} <<EOF\n{{\n"reward": 1\n}}\nEOF\ntrue',
        f'give() {{ echo "$1" > {_TEXT}; }}\ngive 1',
        f"set -x\nset -euo pipefail\necho 0 > {_TEXT}\necho 1 > {_TEXT}\nls /",
        f"python3 -c 'print(1)' > {_TEXT}",
        f"exec > >(tee /logs/verifier/out.log) 2>&1\necho 1 > {_TEXT}\necho done",
        f"sleep 100 &\necho 1 > {_TEXT}\nwait",
    ],
)
def test_common_ways_of_writing_a_reward_are_read(script: str, tmp_path: Path) -> None:
    files = folder("x", ask="a", test=f"#!/bin/bash\n{script}\n", solution="true")
    assert grade(files, "", tmp_path).resolved
