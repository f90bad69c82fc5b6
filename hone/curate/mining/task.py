"""From a commit, its test runs and its statement to a task."""

from __future__ import annotations

import math

from hone.curate.mining.candidates import Candidate, CommitParts
from hone.curate.mining.runs import Observation
from hone.curate.mining.statement import Statement
from hone.types import Checks, Environment, Task

SOURCE = "mined"
_MIN_TIMEOUT_S = 30.0
_SLOWER = 5.0  # factor by which a busy machine may be slower than this one


def make_task(
    candidate: Candidate,
    parts: CommitParts,
    environment: Environment,
    observed: Observation,
    statement: Statement,
) -> Task:
    """Return the task to make the change that a commit made."""
    compared = observed.compared
    return Task(
        id=f"{environment.repo.replace('/', '__')}-{candidate.commit.id[:10]}",
        problem=statement.text,
        environment=environment,
        checks=Checks(
            fail_to_pass=compared.fail_to_pass,
            pass_to_pass=compared.pass_to_pass,
            test_files=parts.test_texts,
            gold_patch=parts.gold_patch,
            test_patch=parts.test_patch,
            timeout_s=max(_MIN_TIMEOUT_S, math.ceil(_SLOWER * observed.seconds)),
        ),
        source=SOURCE,
        metadata={
            "fix_commit": candidate.commit.id,
            "date": candidate.commit.date,
            "files": list(parts.source),
            "test_files": list(parts.tests),
            "likelihood": candidate.likelihood.value,
            "statement": list(statement.sources),
            "flaky": sorted(compared.flaky),
        },
    )
