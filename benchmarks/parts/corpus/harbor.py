"""Write the corpus as a Harbor data set: one task per issue, with all of its patches.

    FOLDER/durations-parse/task.toml                  schema 1.4; metadata.patches lists the patches
                           instruction.md
                           environment/Dockerfile     with the repository beside it
                           tests/test.sh              writes 1 or 0 to /logs/verifier/reward.txt
                           solution/solve.sh          applies the fix, or CORPUS_PATCH
                           solution/patches/NAME.patch

`CORPUS_PATCH=NAME harbor run -p FOLDER/durations-parse -a oracle` plays an exploit; a verifier that gives it
a reward is open to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from benchmarks.parts.corpus.patches import FIX, Patch
from benchmarks.parts.corpus.repository import ISSUES, REPOSITORY, Issue
from benchmarks.peers.test_script import script

_DOCKERFILE = """FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends git patch && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "pytest>=8,<9.2"
ENV PYTHONPATH=/testbed
COPY repository /testbed
WORKDIR /testbed
RUN git init -q && git add --all && \\
    git -c user.name=corpus -c user.email=corpus@localhost commit -q -m "Release 1.4.0"
"""
_SOLVE = f"""#!/bin/bash
cd /testbed || exit 1
patch="$(dirname "$0")/patches/${{CORPUS_PATCH:-{FIX}}}.patch"
git apply --whitespace=nowarn "$patch" || patch --batch --forward --fuzz=5 -p1 -i "$patch"
"""


def write_data_set(folder: Path, patches: Sequence[Patch]) -> None:
    """Write one Harbor task per issue into a new or empty folder.

    Raises:
        FileExistsError: the folder holds a task of the corpus.
    """
    for issue in ISSUES.values():
        own = {slug(patch.name): patch for patch in patches if patch.issue == issue.name}
        if own:
            _write(folder / f"durations-{issue.name}", issue, own)


def slug(name: str) -> str:
    """Return a name as a file name: "os._exit(0) at import" -> "os-exit-0-at-import"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _write(folder: Path, issue: Issue, patches: Mapping[str, Patch]) -> None:
    folder.mkdir(parents=True)
    about = {
        "schema_version": "1.4",
        "metadata": {
            "patches": [
                {
                    "name": name,
                    "class": patch.kind,
                    "about": patch.name,
                    "expected_reward": int(patch.name == FIX),
                }
                for name, patch in patches.items()
            ]
        },
        "agent": {"timeout_sec": 600.0},
        "verifier": {"timeout_sec": 60.0},
        "environment": {"network_mode": "no-network"},
        "solution": {"env": {"CORPUS_PATCH": f"${{CORPUS_PATCH:-{FIX}}}"}},
    }
    files = {
        "task.toml": tomli_w.dumps(about),
        "instruction.md": f"{issue.problem}\n\nThe repository is in /testbed.\n",
        "environment/Dockerfile": _DOCKERFILE,
        "tests/test.sh": script(issue.test_file),
        "solution/solve.sh": _SOLVE,
    }
    files |= {f"environment/repository/{path}": text for path, text in REPOSITORY.items()}
    files |= {f"tests/files/{path}": text for path, text in issue.test_files.items()}
    files |= {f"solution/patches/{name}.patch": patch.text for name, patch in patches.items()}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
        if path.endswith(".sh"):
            (folder / path).chmod(0o755)
