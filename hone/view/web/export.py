"""`hone view RUN --export DIR`: every page as a file with relative links, to read without a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hone.utils.errors import HoneError, writing
from hone.view.errors import NotFound
from hone.view.library import Library
from hone.view.records import EvaluationPage, Filter, RolloutRow, RunLine
from hone.view.web.html import ASSETS, read_asset, render
from hone.view.web.links import Links, file_of, page_path
from hone.view.web.pages import PAGES, Asked, compared

ALL = 1_000_000  # rows of an exported table, which is not cut into pages


class ExportError(HoneError):
    """The pages cannot be written where they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    first: Path  # the page to open
    pages: int
    left_out: int  # pages whose files are missing from the run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    route: str  # key of PAGES
    path: dict[str, str]
    query: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """The page's path, which also names its file."""
        parts = [part for part in self.route.split("/") if part]
        return page_path(
            *(self.path[part[1:-1].partition(":")[0]] if part[0] == "{" else part for part in parts)
        )


def export(library: Library, directory: Path) -> Exported:
    """Write every page below `directory`, which must be new or empty. Raises ExportError."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(f"{directory} is not empty: give --export a directory that is new or empty")
    pages = left_out = 0
    with writing(directory, ExportError):
        for name in ASSETS:
            _write(directory / "assets" / name, read_asset(name))
        for job in _jobs(library):
            try:
                text = _render(library, job)
            except NotFound:
                left_out += 1
                continue
            _write(directory / file_of(job.address), text.encode("utf-8", "replace"))
            pages += 1
    return Exported(first=directory / file_of("/"), pages=pages, left_out=left_out)


def _render(library: Library, job: _Job) -> str:
    page = PAGES[job.route](library, Asked(path=job.path, query=job.query, per_page=ALL))
    return render(page.template, Links(job.address, static=True), live=False, **page.values)


def _jobs(library: Library) -> Iterator[_Job]:
    lines = list(library.runs())
    yield _Job(route="/", path={})
    for line in lines:
        yield from _run_jobs(library, line)
    if names := compared(lines):
        yield _Job(route="/compare", path={}, query=tuple(("run", name) for name in names))


def _run_jobs(library: Library, line: RunLine) -> Iterator[_Job]:
    run = {"run": line.name}
    yield _Job(route="/runs/{run}", path=run)
    yield _Job(route="/runs/{run}/rollouts", path=run)
    rows: tuple[RolloutRow, ...] = library.rollouts(line.name, Filter(), 0, ALL).rows
    for row in rows:
        if row.directory is not None:
            place = {**run, "rollout": row.directory}
            yield _Job(route="/runs/{run}/rollouts/{rollout}", path=place)
            yield _Job(route="/runs/{run}/rollouts/{rollout}/tokens", path=place)
    for group in dict.fromkeys(row.group_id for row in rows):
        yield _Job(route="/runs/{run}/groups/{group:path}", path={**run, "group": group})
    for task in dict.fromkeys([*(row.task_id for row in rows), *_other_tasks(library, line.name)]):
        yield _Job(route="/runs/{run}/tasks/{task:path}", path={**run, "task": task})


def _other_tasks(library: Library, name: str) -> list[str]:
    """Return the tasks that the page of a run links to, beside those of its rollouts."""
    page = library.run(name)
    if isinstance(page, EvaluationPage):
        return [task.id for task in page.tasks]
    return [*(each.task_id for each in page.running), *page.set_aside]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
