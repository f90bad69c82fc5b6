"""From a detected bug to a task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from hone.curate.mutation.baseline import Baseline
from hone.curate.mutation.candidates import Candidate
from hone.curate.mutation.project import Project
from hone.types import Checks, Commit, Environment, Task

SOURCE = "mutated"
_MIN_TIMEOUT_S = 30.0
_SLOWER = 10.0  # factor for a busy machine or a slow wrong fix
_MESSAGE = "Current state"  # of the only commit that the agent sees


def make_task(
    candidate: Candidate,
    statement: str,
    *,
    environment: Environment,
    project: Project,
    baseline: Baseline,
    files: Sequence[str],
    failing: Sequence[str],
) -> Task:
    """Return the task to fix the bug.

    Args:
        environment: of the unchanged repository.
        files: the test files that were run.
        failing: their tests that the bug makes fail.
    """
    passing = [test for file in files for test in baseline.passing[file] if test not in set(failing)]
    seconds = sum(baseline.seconds[file] for file in files)
    return Task(
        id=f"{environment.repo.replace('/', '__')}-{candidate.key[:10]}",
        problem=statement,
        environment=with_bug(environment, candidate),
        checks=Checks(
            fail_to_pass=tuple(failing),
            pass_to_pass=tuple(passing),
            test_files={path: project.tests[path] for path in files} | support(project, files),
            gold_patch=candidate.gold_patch,
            timeout_s=float(max(_MIN_TIMEOUT_S, math.ceil(_SLOWER * seconds))),
        ),
        source=SOURCE,
        metadata=_metadata(candidate, failing, len(passing)),
    )


def with_bug(environment: Environment, candidate: Candidate) -> Environment:
    """Return the environment with the bug in its only commit."""
    bug = Commit(message=_MESSAGE, files=dict(candidate.after))
    return dataclasses.replace(environment, history=(*environment.history, bug))


def support(project: Project, files: Sequence[str]) -> dict[str, str]:
    """Return the helpers in the directories of the test files and above."""
    folders = {parent for file in files for parent in PurePosixPath(file).parents}
    return {path: text for path, text in project.support.items() if PurePosixPath(path).parent in folders}


def _metadata(candidate: Candidate, failing: Sequence[str], passing: int) -> Mapping[str, object]:
    changed = [line for line in candidate.gold_patch.splitlines() if line[:1] in ("+", "-")]
    return {
        "kind": candidate.kind,
        "operators": list(candidate.operators),
        "files": sorted(candidate.after),
        "functions": [mutation.function for mutation in candidate.mutations],
        "lines": [mutation.line for mutation in candidate.mutations],
        "changed_lines": sum(not line.startswith(("+++ ", "--- ")) for line in changed),
        "failing_tests": len(failing),
        "failing_share": round(len(failing) / (len(failing) + passing), 4),
        "statement": "failing tests",
    }
