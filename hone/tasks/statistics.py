"""Statistics of a data set: languages, repositories, sizes, dates, and overlaps with evaluation sets."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hone.tasks.formats import origin
from hone.tasks.published import EVALUATION_SETS, EvaluationTask, evaluation_set, statement_hash
from hone.types import Task

_LANGUAGES = {
    ".c": "C", ".cc": "C++", ".cpp": "C++", ".cs": "C#", ".go": "Go", ".h": "C", ".java": "Java",
    ".js": "JavaScript", ".jsx": "JavaScript", ".kt": "Kotlin", ".mjs": "JavaScript", ".php": "PHP",
    ".py": "Python", ".pyi": "Python", ".pyx": "Python", ".rb": "Ruby", ".rs": "Rust", ".scala": "Scala",
    ".swift": "Swift", ".ts": "TypeScript", ".tsx": "TypeScript",
}  # fmt: skip
_FILE = re.compile(r"^(?:\+\+\+ b|--- a)/([^\t\n]+)", re.MULTILINE)
_YEAR = re.compile(r"\d{4}(?=-\d{2})")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The values of one number over all tasks."""

    smallest: float
    median: float
    mean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Tasks of a data set that an evaluation set also has; ids of the data set."""

    repositories: int  # tasks of a repository from which the evaluation set has tasks
    ids: tuple[str, ...]  # the same id
    commits: tuple[str, ...]  # the same commit of the same repository
    statements: tuple[str, ...]  # the same words of the problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures of a data set; a mapping is sorted by its counts, the largest first."""

    tasks: int
    languages: Mapping[str, int]  # of most files that the fix changes
    repositories: Mapping[str, int]
    years: Mapping[str, int]  # of the column `created_at`
    fail_to_pass: Distribution  # tests
    pass_to_pass: Distribution  # tests
    patch_lines: Distribution  # added and deleted lines of the reference fix
    patch_files: Distribution
    statement_characters: Distribution
    overlaps: Mapping[str, Overlap] = field(default_factory=dict[str, Overlap])  # by evaluation set


def describe(tasks: Sequence[Task]) -> Statistics:
    """Return the statistics of at least one task."""
    patches = [task.checks.gold_patch for task in tasks]
    return Statistics(
        tasks=len(tasks),
        languages=_counts(map(_language, tasks)),
        repositories=_counts(task.environment.repo or UNKNOWN for task in tasks),
        years=dict(sorted(_counts(map(_year, tasks)).items())),
        fail_to_pass=_distribution([len(task.checks.fail_to_pass) for task in tasks]),
        pass_to_pass=_distribution([len(task.checks.pass_to_pass) for task in tasks]),
        patch_lines=_distribution([_changed_lines(patch) for patch in patches]),
        patch_files=_distribution([len(set(_FILE.findall(patch))) for patch in patches]),
        statement_characters=_distribution([len(task.problem) for task in tasks]),
        overlaps={name: find_overlap(tasks, evaluation_set(name)) for name in EVALUATION_SETS},
    )


def find_overlap(tasks: Iterable[Task], evaluated: Sequence[EvaluationTask]) -> Overlap:
    """Return which of the tasks are in an evaluation set."""
    ids = {each.id for each in evaluated}
    commits = {(each.repo.lower(), each.commit[:8]) for each in evaluated}
    repositories = {repo for repo, _ in commits}
    statements = {each.statement for each in evaluated}
    tasks = list(tasks)
    origins = {task.id: origin(task.environment) or ("", "") for task in tasks}
    return Overlap(
        repositories=sum(origins[task.id][0] in repositories for task in tasks),
        ids=tuple(task.id for task in tasks if task.id in ids),
        commits=tuple(task.id for task in tasks if origins[task.id] in commits),
        statements=tuple(task.id for task in tasks if statement_hash(task.problem) in statements),
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _distribution(values: Sequence[int]) -> Distribution:
    return Distribution(
        smallest=min(values),
        median=statistics.median(values),
        mean=statistics.fmean(values),
        largest=max(values),
    )


def _changed_lines(patch: str) -> int:
    return sum(
        line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")) for line in patch.splitlines()
    )


def _language(task: Task) -> str:
    """Return the language of most files of the fix, or of the tests where there is no fix."""
    named = set(_FILE.findall(task.checks.gold_patch)) or {*task.checks.test_files}
    found = Counter(
        language for name in named if (language := _LANGUAGES.get(PurePosixPath(name).suffix.lower()))
    )
    return max(sorted(found), key=lambda name: found[name]) if found else UNKNOWN


def _year(task: Task) -> str:
    row = task.metadata.get("row")
    created = row.get("created_at") if isinstance(row, dict) else None
    year = _YEAR.match(created) if isinstance(created, str) else None
    return year[0] if year else UNKNOWN
