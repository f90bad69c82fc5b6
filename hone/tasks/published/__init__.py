"""Lists that others published: instances that a system trains on, and the tasks of evaluation sets.

`data` holds ids, commits and hashes of statements, no texts; each file says where it comes from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from hone.tasks.errors import TaskError

# Name of a list -> what it lists.
INSTANCE_LISTS = {
    "django-train-201": "201 Django instances of SWE-bench Verified, the training set of GaokaiZhang/slime",
    "django-test-30": "the 30 other Django instances of SWE-bench Verified, its test set",
}
EVALUATION_SETS = ("swe-bench-verified", "swe-bench-lite")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """One task of a published evaluation set."""

    id: str
    repo: str  # "owner/name"
    commit: str  # 40 hex digits
    statement: str  # `statement_hash` of its problem


def instance_list(name: str) -> list[str]:
    """Return the ids of a published list. Raises TaskError for an unknown name."""
    if name not in INSTANCE_LISTS:
        raise TaskError(f"there is no instance list {name!r}; there are {', '.join(INSTANCE_LISTS)}")
    return _lines(f"{name}.txt")


@cache
def evaluation_set(name: str) -> tuple[EvaluationTask, ...]:
    """Return the tasks of one of EVALUATION_SETS."""
    rows = (line.split() for line in _lines(f"{name}.txt"))
    return tuple(
        EvaluationTask(id=found, repo=repo, commit=commit, statement=statement)
        for found, repo, commit, statement in rows
    )


def statement_hash(problem: str) -> str:
    """Return a hash of a problem's words, 16 hex digits; white space and case do not count."""
    words = " ".join(problem.lower().split())
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _lines(file: str) -> list[str]:
    text = (resources.files("hone.tasks.published") / "data" / file).read_text("utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
