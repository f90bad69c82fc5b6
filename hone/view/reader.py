"""Read one run, also while it is written: every file is read again only after it has changed."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hone.config import ConfigError, RunSettings, resolve
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import Entry, Ledger, SetAside
from hone.rollout.store import Store
from hone.utils.jsonl import read_json_lines
from hone.view.locks import is_locked
from hone.view.records import RunKind
from hone.view.stored import Stored, read_stored

LEDGER, RESULTS, SUMMARY, METRICS, RECIPE = (
    "ledger.sqlite",
    "results.jsonl",
    "summary.json",
    "metrics.jsonl",
    "config.toml",
)
_SETTLED_S = 0.05  # a file that changed less than this ago may change again within one tick of its clock

Value = TypeVar("Value")
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value with the state of the files that it was read from; None: too fresh to be kept."""

    stamp: Stamp | None
    value: Any


class RunReader:
    """Reads a training, an evaluation or a store of rollouts. Any thread may call its methods.

    Nothing is written, and no lock is taken. `name` is unique among the shown runs.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.store = Store(directory / "rollouts")
        self._mutex = threading.RLock()
        self._kept: dict[str, _Kept] = {}
        self._made: dict[str, tuple[Hashable, object, Any]] = {}  # see `remember`
        self._steps: dict[tuple[str, int], tuple[int, Any]] = {}  # see `remember_step`
        self._stored: dict[str, Stored | None] = {}  # by directory; None: it cannot be read

    @property
    def kind(self) -> RunKind:
        if self.has_ledger:
            return RunKind.TRAINING
        if (self.directory / RESULTS).is_file():
            return RunKind.EVALUATION
        return RunKind.TRAINING if (self.directory / METRICS).is_file() else RunKind.ROLLOUTS

    @property
    def has_ledger(self) -> bool:
        """Whether a training samples rollouts of its own, as SFT and a replay do not."""
        return (self.directory / LEDGER).is_file()

    @property
    def is_running(self) -> bool:
        return is_locked(self.directory)

    def entries(self) -> Sequence[Entry]:
        """Return the rows of the ledger in order of dispatch; () without one. Raises LedgerError."""
        return self._ledger()[0]

    def tasks_set_aside(self) -> Sequence[SetAside]:
        """Return every time that a task was set aside, in order. Raises LedgerError."""
        return self._ledger()[1]

    @property
    def last_step(self) -> int | None:
        """The last committed step; None before the first commit, and without a ledger."""
        return self._ledger()[2]

    def metrics(self, kind: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the last record of each step of one series, in order of step; None: that of the training."""
        records = self._read("metrics", (METRICS,), self._read_metrics)
        return records.get(kind or ("train" if "train" in records else "sft"), ())

    def results(self) -> Sequence[Mapping[str, Any]]:
        """Return the last result of each sample of an evaluation. Raises ValueError for a damaged line."""
        return self._read("results", (RESULTS,), self._read_results)

    def settings(self) -> RunSettings | None:
        """Return the settings of a training; None without a recipe that this version can read."""
        return self._read("settings", (RECIPE,), self._read_settings)

    def values(self) -> Mapping[str, Any]:
        """Return what a run's recipe or an evaluation's summary sets, as nested values, of any version."""
        return self._read("values", (RECIPE, SUMMARY), self._read_values)

    def recipe(self) -> str:
        """Return the resolved recipe of a training, "" without one."""
        path = self.directory / RECIPE
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def names(self) -> Sequence[str]:
        """Return the directories of all stored rollouts, in alphabetical order."""
        return self._read("names", ("rollouts",), self.store.names)

    def stored(self, name: str) -> Stored | None:
        """Return what is known of a stored rollout so far, see `read_stored`."""
        return self._stored.get(name)

    def unread(self) -> list[str]:
        """Return the stored rollouts whose files were not read yet, the last ones first."""
        if self.kind is RunKind.TRAINING:
            names: Iterable[str] = (entry.directory for entry in self.entries() if entry.directory)
        elif self.kind is RunKind.EVALUATION:
            names = (result["run_dir"] for result in self.results())
        else:
            names = self.names()
        return [name for name in names if name not in self._stored][::-1]

    def read_stored(self, seconds: float | None = None, names: Iterable[str] | None = None) -> bool:
        """Read stored rollouts that were not read yet for up to `seconds`; return whether none is left.

        `names`: only these. Each file is read once.
        """
        until = None if seconds is None else time.monotonic() + seconds
        for name in self.unread() if names is None else [n for n in names if n not in self._stored]:
            if until is not None and time.monotonic() >= until:
                return False
            self._stored[name] = read_stored(self.store.root / name)
        return True

    @property
    def stored_count(self) -> int:
        """How many stored rollouts were read: changes whenever `stored` has more to tell."""
        return len(self._stored)

    def remember(
        self, key: tuple[str, *tuple[Hashable, ...]], source: object, make: Callable[[], Value]
    ) -> Value:
        """Return what `make` makes of `source`, from memory while its key is the same.

        The first part of a key names the thing; one of each is kept.
        `source` is kept with it, so that its id in a key cannot become that of another object.
        """
        with self._mutex:
            made = self._made.get(key[0])
            if made is None or made[0] != key:
                made = self._made[key[0]] = (key, source, make())
            return made[2]

    def remember_step(self, what: str, step: int, size: int, make: Callable[[], Value]) -> Value:
        """Return a value of one step, from memory while the step holds `size` rollouts."""
        kept = self._steps.get((what, step))
        if kept is None or kept[0] != size:
            kept = self._steps[what, step] = (size, make())
        return kept[1]

    def resolved_test(self) -> Callable[[Entry], bool]:
        """Return a function that says whether a rollout resolved its task, from outcome and reward alone.

        A rollout that a limit ended, but whose patch resolves the task, has the reward of a submitted fix.
        """
        settings = self.settings()
        rewards = {} if settings is None else settings.rollout.rewards
        worth = {outcome: rewards.get(outcome, rule.reward) for outcome, rule in OUTCOME_RULES.items()}
        fix = worth[Outcome.RESOLVED]
        limits = {o for o, rule in OUTCOME_RULES.items() if rule.graded and worth[o] != fix}

        def is_resolved(entry: Entry) -> bool:
            return entry.outcome is Outcome.RESOLVED or (entry.outcome in limits and entry.reward == fix)

        return is_resolved

    def _ledger(self) -> tuple[Sequence[Entry], Sequence[SetAside], int | None]:
        return self._read("ledger", (LEDGER, f"{LEDGER}-wal"), self._read_ledger)

    def _read_ledger(self) -> tuple[Sequence[Entry], Sequence[SetAside], int | None]:
        if not self.has_ledger:
            return (), (), None
        with Ledger.read(self.directory) as ledger:
            return ledger.entries(), ledger.tasks_set_aside(), ledger.last_step

    def _read_metrics(self) -> dict[str, list[Mapping[str, Any]]]:
        by_kind: dict[str, dict[int, Mapping[str, Any]]] = {}
        for _, record in read_json_lines(self.directory / METRICS):
            by_kind.setdefault(record["kind"], {})[record["step"]] = record
        return {kind: [steps[step] for step in sorted(steps)] for kind, steps in by_kind.items()}

    def _read_results(self) -> Sequence[Mapping[str, Any]]:
        lines = read_json_lines(self.directory / RESULTS)
        return list({(line["instance_id"], line["sample"]): line for _, line in lines}.values())

    def _read_settings(self) -> RunSettings | None:
        try:
            if (self.directory / RECIPE).is_file():
                return resolve(self.directory / RECIPE)
        except ConfigError:  # written by another version
            pass
        return None

    def _read_values(self) -> Mapping[str, Any]:
        try:
            if (self.directory / RECIPE).is_file():
                return tomllib.loads((self.directory / RECIPE).read_text(encoding="utf-8"))
            if (self.directory / SUMMARY).is_file():
                return json.loads((self.directory / SUMMARY).read_bytes())["args"]
        except (ValueError, KeyError):  # not the file that it is named like
            pass
        return {}

    def _read(self, what: str, files: tuple[str, ...], read: Any) -> Any:
        """Return what `read` returns, from memory while the files are unchanged."""
        with self._mutex:
            stamp = self._stamp(files)
            kept = self._kept.get(what)
            if kept is not None and kept.stamp == stamp:
                return kept.value
            value = read()
            newest = max((each[0] for each in stamp if each is not None), default=0)
            settled = time.time() - newest / 1e9 > _SETTLED_S
            self._kept[what] = _Kept(stamp if settled else None, value)
            return value

    def _stamp(self, files: tuple[str, ...]) -> Stamp:
        found: list[tuple[int, int, int] | None] = []
        for name in files:
            try:
                stat = (self.directory / name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)
