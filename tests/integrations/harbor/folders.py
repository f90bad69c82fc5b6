"""Harbor tasks of many kinds, written by hand and small: each has a solution that earns 1 and is worth 0
untouched.

`python -m tests.integrations.harbor.folders DIR` writes them all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hone.tasks.harbor.folder import pack, write_folder

Files = Mapping[str, str]

CONFIG = """schema_version = "1.4"
{top}
[task]
name = "hone/{name}"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
{verifier}
[environment]
docker_image = "host"
workdir = "/app"
memory_mb = 512
{network}
{environment}
{tail}
"""
NO_NETWORK = 'network_mode = "no-network"'
REWARD = """
if {test}; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
PYTEST = REWARD.format(test="python3 -m pytest -q -p no:cacheprovider /tests/test_outputs.py")


def config(name: str, *, network: str = NO_NETWORK, **parts: str) -> str:
    filled = {"top": "", "verifier": "", "environment": "", "tail": "", **parts}
    return CONFIG.format(name=name, network=network, **filled)


def shell_test(test: str) -> str:
    """Return a test.sh that writes 1 where a command succeeds, else 0."""
    return "#!/bin/bash\n" + REWARD.format(test=test)


def folder(
    name: str, *, ask: str, test: str, solution: str, files: Files | None = None, **parts: str
) -> Files:
    """Return the packed files of a task with one step."""
    texts = {
        "task.toml": config(name, **parts),
        "instruction.md": ask,
        "environment/start.txt": "start\n",
        "tests/test.sh": test,
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{solution}\n",
        **(files or {}),
    }
    return {path: pack(text.encode(), executable=path.endswith(".sh")) for path, text in texts.items()}


def python_folder(
    name: str, *, ask: str, tests: str, solution: str, files: Files | None = None, **parts: str
) -> Files:
    """Return a task whose script runs pytest."""
    return folder(
        name, ask=ask, test=f"#!/bin/bash\n{PYTEST}", solution=solution,
        files={"tests/test_outputs.py": tests, **(files or {})}, **parts,
    )  # fmt: skip


def steps_folder(
    name: str, steps: Mapping[str, tuple[str, str]], *, strategy: str = "mean", least: str = ""
) -> Files:
    """Return a task of several steps: name -> (solution, test)."""
    tail = "\n".join(f'[[steps]]\nname = "{step}"\n{least}' for step in steps)
    texts = {
        "task.toml": config(name, top=f'multi_step_reward_strategy = "{strategy}"', tail=tail),
        "environment/start.txt": "start\n",
    }
    for step, (solution, test) in steps.items():
        texts[f"steps/{step}/instruction.md"] = f"Do {step}."
        texts[f"steps/{step}/solution/solve.sh"] = f"#!/bin/bash\nset -e\n{solution}\n"
        texts[f"steps/{step}/tests/test.sh"] = shell_test(test)
    return {path: pack(text.encode(), executable=path.endswith(".sh")) for path, text in texts.items()}


_ANSWER = {"ask": "Write 42 to /app/answer.txt.", "solution": "echo 42 > /app/answer.txt"}
_IS_42 = '[ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]'
_JSON = """#!/bin/bash
python3 - <<'EOF'
import json, pathlib
found = pathlib.Path("/app/numbers.txt")
right = found.exists() and sum(map(int, found.read_text().split())) == 10
rewards = {"reward": float(right), "numbers": 3.0 if right else 0.0}
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
EOF
"""
PROGRAM = """import subprocess, sys

def test_greets():
    done = subprocess.run([sys.executable, "/app/greet.py", "Ada"], capture_output=True, text=True)
    assert done.stdout == "Hello, Ada!\\n"
"""
_MODULE = """import sys
sys.path.insert(0, "/app")

def test_add():
    from calc import add
    assert add(2, 3) == 5 and add(-1, 1) == 0

def test_add_text():
    from calc import add
    assert add("a", "b") == "ab"
"""
_CSV = """import csv

def test_rows():
    rows = list(csv.DictReader(open("/app/out.csv")))
    assert [row["name"] for row in rows] == ["b", "a"]
"""
_UNIT = """#!/bin/sh
set -eu
cd /tests
if python3 -m unittest -q check; then reward=1; else reward=0; fi
echo "$reward" > "/logs/verifier/reward.txt"
"""
_CHECK = """import pathlib, unittest

class Check(unittest.TestCase):
    def test_words(self):
        self.assertEqual(pathlib.Path("/app/words.txt").read_text().split(), ["one", "two"])
"""
_FIRST = ("echo 1 > a", "grep -q 1 a")
_OFFLINE = "! timeout 2 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>/dev/null"
_ALLOW = 'network_mode = "allowlist"\nallowed_hosts = ["example.com"]'


def folders() -> dict[str, Files]:
    """Return the packed files of every task by its name."""
    shell = {
        "shell-answer": folder("shell-answer", test=shell_test(_IS_42), **_ANSWER),
        "shell-append": folder(
            "shell-append", ask="Append a line.", solution="echo end >> /app/start.txt",
            test=shell_test('[ "$(cat /app/start.txt)" = "$(printf "start\\nend")" ]'),
        ),
        "shell-delete": folder(
            "shell-delete", ask="Remove /app/start.txt.", solution="rm /app/start.txt",
            test=shell_test("! test -e /app/start.txt"),
        ),
        "shell-executable": folder(
            "shell-executable", ask="Write a program /app/run that prints ok.",
            solution="printf '#!/bin/sh\\necho ok\\n' > /app/run; chmod +x /app/run",
            test=shell_test('[ "$(/app/run)" = ok ]'),
        ),
        "shell-link": folder(
            "shell-link", ask="Link /app/current to start.txt.", solution="ln -s start.txt /app/current",
            test=shell_test('[ "$(readlink /app/current)" = start.txt ]'),
        ),
        "shell-errexit": folder(
            "shell-errexit", test=f"#!/bin/bash\nset -euo pipefail\n{REWARD.format(test=_IS_42)}", **_ANSWER,
        ),
    }  # fmt: skip
    python = {
        "python-program": python_folder(
            "python-program", ask="Write /app/greet.py.", tests=PROGRAM,
            solution="echo 'import sys; print(f\"Hello, {sys.argv[1]}!\")' > /app/greet.py",
        ),
        "python-module": python_folder(
            "python-module", ask="Write add in /app/calc.py.", tests=_MODULE,
            solution="printf 'def add(a, b):\\n    return a + b\\n' > /app/calc.py",
        ),
        "python-csv": python_folder(
            "python-csv", ask="Sort by score, best first.", tests=_CSV,
            solution="printf 'name,score\\nb,2\\na,1\\n' > /app/out.csv",
        ),
        "python-json-reward": folder(
            "python-json-reward", ask="Write numbers that add up to 10.", test=_JSON,
            solution="echo 1 2 3 4 > /app/numbers.txt",
        ),
        "python-unittest": folder(
            "python-unittest", ask="Write one and two.", test=_UNIT, files={"tests/check.py": _CHECK},
            solution="echo one two > /app/words.txt",
        ),
    }  # fmt: skip
    steps = {
        "steps-mean": steps_folder(
            "steps-mean", {"first": _FIRST, "second": ("echo 2 > b", "grep -q 2 b")},
        ),
        "steps-final": steps_folder(
            "steps-final", {"first": _FIRST, "second": ("echo 2 >> a", "[ $(wc -l < a) = 2 ]")},
            strategy="final",
        ),
        "steps-least": steps_folder(
            "steps-least", {"first": _FIRST, "second": ("mv a b", "grep -q 1 b && ! test -e a")},
            least="min_reward = 1.0", strategy="final",
        ),
    }  # fmt: skip
    network = {
        "no-network-answer": folder(
            "no-network-answer", test=shell_test(f"{_IS_42} && {_OFFLINE}"), **_ANSWER,
        ),
        "no-network-loopback": python_folder(
            "no-network-loopback", ask="Write /app/greet.py.", tests=PROGRAM,
            solution=f"{_OFFLINE}\necho 'import sys; print(f\"Hello, {{sys.argv[1]}}!\")' > /app/greet.py",
        ),
        "allowlist-proxy": folder(
            "allowlist-proxy", ask="Write the proxy's address.", network=_ALLOW,
            solution='echo "$https_proxy" > /app/proxy.txt',
            test=shell_test("grep -q 127.0.0.1 /app/proxy.txt"),
        ),
        "allowlist-refused": folder(
            "allowlist-refused", network=_ALLOW, ask="Write 42; no other host can be reached.",
            solution=f"{_OFFLINE}\necho 42 > /app/answer.txt", test=shell_test(_IS_42),
        ),
    }  # fmt: skip
    separate = {
        "separate-artifact": folder(
            "separate-artifact", top='artifacts = ["/app/answer.txt"]',
            verifier='environment_mode = "separate"', test=shell_test(_IS_42), **_ANSWER,
        ),
        "separate-python": python_folder(
            "separate-python", ask="Write /app/greet.py.", top='artifacts = ["/app/greet.py"]', tests=PROGRAM,
            verifier='environment_mode = "separate"',
            solution="echo 'import sys; print(f\"Hello, {sys.argv[1]}!\")' > /app/greet.py",
        ),
    }  # fmt: skip
    return {**shell, **python, **steps, **network, **separate}


def write_all(path: Path, chosen: Mapping[str, Files] | None = None) -> None:
    """Write the folders into a directory that does not hold them yet."""
    for name, files in (chosen or folders()).items():
        write_folder(files, path / name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
