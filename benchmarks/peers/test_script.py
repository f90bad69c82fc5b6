"""A plain reward: pytest's exit status, written to a file by a script that runs beside the patch.

The conventions are those of Harbor's default verifier: the tests are uploaded to /tests of the container in
which the patch was made, old reward files are removed, /tests/test.sh runs, and the reward is that of
/logs/verifier/reward.json, or else of reward.txt. No file, an unreadable one, and a script that runs out of
time are errors of the trial, not rewards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from hone.sandbox import SandboxSpec
from hone.sandbox.contract import Provider, Sandbox, SandboxLost
from hone.tasks.workspace import GIT_ENV

LOGS, TESTS = "/logs/verifier", "/tests"
SCRIPT = """#!/bin/bash
# Restore the hidden tests, run them, and write the reward: 1 when pytest exits with 0.
cp -r {tests}/files/. .
python3 -m pytest -rA -p no:cacheprovider --junitxml={logs}/junit.xml {file}
if [ $? -eq 0 ]; then
    echo 1 > {logs}/reward.txt
else
    echo 0 > {logs}/reward.txt
fi
"""
_SETUP = f"""
git apply --whitespace=nowarn /tmp/patch || patch --batch --forward --fuzz=5 -p1 -i /tmp/patch || exit 99
mkdir -p {LOGS}
rm -f {LOGS}/reward.txt {LOGS}/reward.json
"""


def script(test_file: str) -> str:
    """Return the test.sh that runs a test file."""
    return SCRIPT.format(tests=TESTS, logs=LOGS, file=test_file)


async def reward(
    provider: Provider,
    workspace: Path,
    patch: str,
    test_files: Mapping[str, str],
    test_file: str,
    *,
    env: Mapping[str, str],
    timeout_s: float,
) -> float | None:
    """Return the reward of a patch, 0 when it does not apply, or None for an error of the trial.

    Args:
        workspace: the repository, on the host.
        test_files: path -> text, the hidden tests.
        test_file: the one of them that runs.
    """
    spec = SandboxSpec(layer=workspace, env={**GIT_ENV, **env})
    async with await provider.start(spec) as sandbox:
        try:
            await sandbox.write("/tmp/patch", patch.encode())
            if (await sandbox.exec(_SETUP)).exit_code != 0:
                return 0.0
            for path, text in test_files.items():
                await sandbox.write(f"{TESTS}/files/{path}", text.encode())
            await sandbox.write(f"{TESTS}/test.sh", script(test_file).encode())
            ran = await sandbox.exec(["bash", f"{TESTS}/test.sh"], timeout_s=timeout_s)
            return None if ran.timed_out else await _read(sandbox)
        except SandboxLost:
            return None


async def _read(sandbox: Sandbox) -> float | None:
    for name, parse in (("reward.json", _from_json), ("reward.txt", float)):
        try:
            data = await sandbox.read(f"{LOGS}/{name}")
        except (FileNotFoundError, IsADirectoryError):
            continue
        try:
            value = parse(data.decode())
        except (ValueError, TypeError, KeyError):
            return None
        return value if math.isfinite(value) else None
    return None


def _from_json(text: str) -> float:
    found = json.loads(text)
    return float(found["reward"] if isinstance(found, dict) else found)
