"""All runs below some directories: what the pages, the API, the export and the terminal ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hone.view.comparison import comparison_page
from hone.view.errors import NotFound
from hone.view.evaluation_page import evaluation_page
from hone.view.files import run_file
from hone.view.group_page import group_page
from hone.view.reader import RunReader
from hone.view.records import (
    ComparisonPage,
    EvaluationPage,
    Filter,
    GroupPage,
    RolloutPage,
    RolloutTable,
    RunKind,
    RunLine,
    RunPage,
    TaskPage,
    TokenPage,
)
from hone.view.rollout_page import rollout_page
from hone.view.rollouts import rollout_table
from hone.view.run_page import run_page
from hone.view.runs import find_runs, run_line
from hone.view.tasks import task_page
from hone.view.tokens import token_page

_SEARCH_S = 2.0  # new runs are looked for this often


class Library:
    """Runs by name. Methods may be called from any thread, and read again only what has changed.

    Each raises NotFound for a name that does not exist, LedgerError, StoreError or ValueError for a damaged
    file.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._mutex = threading.Lock()
        self._readers: dict[str, RunReader] = {}
        self._searched = 0.0

    def runs(self) -> tuple[RunLine, ...]:
        """Return all runs, the one that changed last first."""
        lines = [run_line(reader) for reader in self._found().values()]
        return tuple(sorted(lines, key=lambda line: (-(line.updated_at or 0.0), line.name)))

    def reader(self, name: str) -> RunReader:
        """Return the reader of a run."""
        readers = self._found()
        if name not in readers:
            known = ", ".join(list(readers)[:5])
            raise NotFound(f"there is no run {name!r}" + (f": there are {known}" if known else ""))
        return readers[name]

    def run(self, name: str) -> RunPage | EvaluationPage:
        """Return the page of a training, of an evaluation or of a store of rollouts."""
        reader = self.reader(name)
        return evaluation_page(reader) if reader.kind is RunKind.EVALUATION else run_page(reader)

    def rollouts(self, name: str, chosen: Filter, first: int = 0, count: int = 100) -> RolloutTable:
        """Return one page of the table of rollouts. Raises ValueError for a field that no row has."""
        return rollout_table(self.reader(name), chosen, first=first, count=count)

    def rollout(self, name: str, directory: str) -> RolloutPage:
        """Return the page of the rollout that is stored in `directory` below rollouts/."""
        return rollout_page(self.reader(name), directory)

    def tokens(self, name: str, directory: str) -> TokenPage:
        """Return the token tree of a stored rollout."""
        return token_page(self.reader(name), directory)

    def group(self, name: str, group_id: str) -> GroupPage:
        """Return the rollouts of one task that share a baseline."""
        return group_page(self.reader(name), group_id)

    def task(self, name: str, task_id: str) -> TaskPage:
        """Return a task and its rollouts."""
        return task_page(self.reader(name), task_id)

    def compare(self, names: Sequence[str]) -> ComparisonPage:
        """Return two to six runs over each other."""
        return comparison_page([self.reader(name) for name in names])

    def file(self, name: str, path: str) -> Path:
        """Return a file of an evaluation or of a rollout, see `run_file`."""
        return run_file(self.reader(name), path)

    def _found(self) -> dict[str, RunReader]:
        with self._mutex:
            now = time.monotonic()
            if not self._readers or now - self._searched > _SEARCH_S:
                found = find_runs(self._directories)
                self._readers = {
                    name: self._readers.get(name) or RunReader(name, path) for name, path in found.items()
                }
                self._searched = now
            return dict(self._readers)
