"""Where each row of a data set can be graded on this machine, and what is missing; nothing is started."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hone.environment.environment import has_own_repository
from hone.grading.assess import assess
from hone.tasks.errors import TaskError
from hone.tasks.gradeability import Assessment, Gradeability
from hone.tasks.local import find_repository, specification_of
from hone.tasks.python import Interpreter, find_interpreter, find_interpreters
from hone.tasks.python.compiled import check_compiler, declares_extensions
from hone.tasks.python.steps import check_install
from hone.tasks.repository import Repository
from hone.tasks.workspace import LOCAL, is_local
from hone.types import Task

_SETUP = "setup.py"


class Kind(StrEnum):
    """What a row lacks."""

    INTERPRETER = "interpreter"
    REPOSITORY = "repository"
    COMMIT = "commit"
    COMPILER = "compiler"
    IMAGE = "image"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing with which a row could be graded."""

    kind: Kind
    name: str  # such as "3.5", "owner/name", an image, or a package


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What this machine can do with one row."""

    row: int  # counted from 1
    id: str
    repo: str
    natively: Assessment  # in a repository on this machine, without an image
    in_image: Assessment
    needs: tuple[Need, ...] = ()  # any one kind of place needs all of its own

    @property
    def status(self) -> Gradeability:
        """The better of both places; a row that is refused in one may be graded in the other."""
        found = {self.natively.status, self.in_image.status}
        return next(status for status in Gradeability if status in found)

    @property
    def reason(self) -> str:
        """Why it is not gradeable here, one sentence for each place; empty for a gradeable row."""
        if self.status is Gradeability.GRADEABLE:
            return ""
        reasons = dict.fromkeys((self.natively.reason, self.in_image.reason))
        return "; ".join(filter(None, reasons))


def diagnose(
    tasks: Sequence[Task],
    numbers: Sequence[int],
    *,
    repositories: Path | None,
    images: Iterable[str] = (),
) -> list[Diagnosis]:
    """Return the diagnosis of each task.

    Requirements are not resolved: an index that lacks a package, or a build that fails, is found at the first
    use.

    Args:
        numbers: the row of each task.
        repositories: directory of repositories named `owner__name`; None: there are none.
        images: names of the images on this machine.
    """
    here = _Machine(repositories=repositories, images=frozenset(images), interpreters=find_interpreters())
    opened = {repo: here.open(repo, group) for repo, group in _by_repository(tasks).items()}
    return [
        _diagnose(task, number, here, opened.get(task.environment.repo))
        for task, number in zip(tasks, numbers, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What is known of the repository of some tasks."""

    problem: str = ""  # why it cannot be used
    compiled: Mapping[str, bool] = dataclasses.field(default_factory=dict[str, bool])  # by commit that exists


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    repositories: Path | None
    images: frozenset[str]
    interpreters: tuple[Interpreter, ...]

    def open(self, repo: str, tasks: Sequence[Task]) -> _Opened:
        if self.repositories is None:
            return _Opened(problem=f"no folder of repositories is given, in which {repo} is")
        try:
            repository = Repository.open(find_repository(self.repositories, repo))
            commits = list(dict.fromkeys(task.environment.commit or "HEAD" for task in tasks))
            setups = repository.texts_at(commits, _SETUP)
        except TaskError as error:
            return _Opened(problem=str(error))
        return _Opened(compiled={commit: declares_extensions(text) for commit, text in setups.items()})


def _by_repository(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    groups: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.environment.repo and has_own_repository(task.environment):
            groups[task.environment.repo].append(task)
    return groups


def _diagnose(task: Task, number: int, here: _Machine, opened: _Opened | None) -> Diagnosis:
    natively, needs = _natively(task, here, opened)
    in_image, of_image = _in_image(task, here)
    return Diagnosis(
        row=number,
        id=task.id,
        repo=task.environment.repo,
        natively=natively,
        in_image=in_image,
        needs=(*needs, *of_image),
    )


def _natively(task: Task, here: _Machine, opened: _Opened | None) -> tuple[Assessment, tuple[Need, ...]]:
    if not has_own_repository(task.environment):
        return assess(task), ()
    if opened is None:
        return _refused("it names no repository that could take the place of its image"), ()
    needs: list[Need] = []
    reasons: list[str] = []

    def lacks(kind: Kind, name: str, reason: str) -> None:
        needs.append(Need(kind=kind, name=name))
        reasons.append(reason)

    local = dataclasses.replace(task.environment, image=f"{LOCAL}{task.environment.repo}")
    found = assess(dataclasses.replace(task, environment=local))
    if found.status is Gradeability.REFUSED:
        return found, ()
    if found.status is Gradeability.NEEDS_EXTRA:
        lacks(Kind.EXTRA, "swebench", found.reason)
    commit = task.environment.commit or "HEAD"
    if opened.problem:
        lacks(Kind.REPOSITORY, task.environment.repo, opened.problem)
    elif commit not in opened.compiled:
        lacks(
            Kind.COMMIT,
            f"{task.environment.repo}@{commit}",
            f"{task.environment.repo} has no commit {commit}",
        )
    try:
        specification = specification_of(task)
        if specification is not None:
            check_install(specification)
    except TaskError as error:
        return _refused(str(error)), ()
    python = specification.python if specification is not None else ""
    try:
        find_interpreter(python, here.interpreters)
    except TaskError as error:
        lacks(Kind.INTERPRETER, python, str(error))
    if opened.compiled.get(commit):
        try:
            check_compiler()
        except TaskError as error:
            lacks(Kind.COMPILER, "gcc", str(error))
    if not reasons:
        return Assessment(status=Gradeability.GRADEABLE), ()
    status = found.status if found.status is Gradeability.NEEDS_EXTRA else Gradeability.REFUSED
    return Assessment(status=status, reason="; ".join(reasons)), tuple(needs)


def _in_image(task: Task, here: _Machine) -> tuple[Assessment, tuple[Need, ...]]:
    environment = task.environment
    if not has_own_repository(environment):
        where = "in its repository" if is_local(environment) else "in a repository that Hone makes"
        return _refused(f"it is graded {where}, and has no image"), ()
    found = assess(task)
    if found.status is Gradeability.NEEDS_EXTRA:
        return found, (Need(kind=Kind.EXTRA, name="swebench"),)
    if found.status is not Gradeability.NEEDS_IMAGE:
        return found, ()
    name = environment.image.removeprefix("docker://")
    if name in here.images or Path(environment.image.removeprefix("rootfs:")).is_dir():
        return Assessment(status=Gradeability.GRADEABLE), ()
    reason = f"its image is not on this machine: run `hone images pull {name}`"
    return Assessment(status=Gradeability.NEEDS_IMAGE, reason=reason), (Need(kind=Kind.IMAGE, name=name),)


def _refused(reason: str) -> Assessment:
    return Assessment(status=Gradeability.REFUSED, reason=reason)
