"""The arena's results: one line per training, and the rows of a page made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

from benchmarks.parts.arena_stages import Stage
from hone.evaluate.statistics import Comparison, Mean, Rate, compare, resolve_rate
from hone.utils.jsonl import append_json, drop_partial_line, read_json_lines

START = "start"  # the stage of the results before reinforcement learning
FIRST = "algorithms"  # the stage whose rows stand in other tables, too

Key = tuple[str, str, int]  # stage, name, seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a training reached, or why it failed: one line of the results.

    The result of a start model has the stage START and its digest as name.
    """

    stage: str
    name: str
    seed: int
    start: str  # digest of the weights that it began with; empty if there were none
    sets: Sequence[str]
    test: Mapping[str, bool] = field(default_factory=dict)  # task -> resolved, on tasks that no training saw
    test_unseen: Mapping[str, bool] = field(default_factory=dict)  # on families that no training saw
    tokens_to_goal: int | None = None  # trained until the mean resolve rate of some steps reached the goal
    seconds: float = 0.0  # of reinforcement learning; of the start model, of making it
    error: str = ""  # the last line of the log of a training that failed; empty if it did not

    @property
    def key(self) -> Key:
        return self.stage, self.name, self.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The trainings of one name, over seeds."""

    name: str
    seeds: Sequence[float]  # resolve rate on the held-out tasks, of each seed
    test: Rate  # over all seeds; the interval is that of a mean over tasks
    gain: Mean  # against the start model, paired by task
    unseen: Rate  # on the families that training never shows
    tokens_to_goal: Sequence[int]  # of the seeds that reached the goal
    seconds: float  # of reinforcement learning, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two rows of a table that differ most clearly, compared task by task over their common seeds."""

    better: str
    worse: str
    gain: Mean  # of the better over the worse
    p_value: float  # two-sided
    pairs: int  # that were compared, by which the p-value is to be multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The results of one stage."""

    stage: str
    title: str
    before: Rate | None  # of the start models of its rows, on the held-out tasks; None without rows
    before_unseen: Rate | None
    rows: Sequence[Row]  # the best first
    clearest: Pair | None  # None with fewer than two rows
    failures: Sequence[Result]


def read_results(path: Path) -> dict[Key, Result]:
    """Return the last result of each training; a file that does not exist has none."""
    results = [Result(**record) for _, record in read_json_lines(path)]
    return {result.key: result for result in results}


def add_result(path: Path, known: dict[Key, Result], result: Result) -> None:
    """Append a result to the file and to `known`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drop_partial_line(path)
    append_json(path, dataclasses.asdict(result))
    known[result.key] = result


def is_done(result: Result | None) -> bool:
    """Return whether a training need not run again."""
    return result is not None and not result.error


def tables(known: Iterable[Result], stages: Mapping[str, Stage]) -> list[Table]:
    """Return the results of each stage that has any."""
    results = list(known)
    starts = {result.start: result for result in results if result.stage == START}
    made: list[Table] = []
    for name, stage in stages.items():
        own = [result for result in results if result.stage == name]
        beside = [result for result in results if result.stage == FIRST and result.name in stage.beside]
        if own:
            made.append(_table(name, stage.title, [*own, *beside], starts))
    return made


def _table(name: str, title: str, results: Sequence[Result], starts: Mapping[str, Result]) -> Table:
    reached = [result for result in results if is_done(result)]
    used = [starts[digest] for digest in dict.fromkeys(result.start for result in reached)]
    return Table(
        stage=name,
        title=title,
        before=resolve_rate(samples(used, "test")) if used else None,
        before_unseen=resolve_rate(samples(used, "test_unseen")) if used else None,
        rows=_rows(reached, starts),
        clearest=_clearest(reached),
        failures=[result for result in results if result.error],
    )


def _clearest(reached: Sequence[Result]) -> Pair | None:
    by_name = _by_name(reached)
    compared = {pair: _compare(by_name[pair[0]], by_name[pair[1]]) for pair in permutations(by_name, 2)}
    found = [(pair, each) for pair, each in compared.items() if each.tasks and each.gain.mean >= 0]
    if not found:
        return None
    (worse, better), comparison = min(found, key=lambda one: one[1].p_value)
    return Pair(
        better=better,
        worse=worse,
        gain=comparison.gain,
        p_value=comparison.p_value,
        pairs=len(compared) // 2,
    )


def _compare(first: Sequence[Result], second: Sequence[Result]) -> Comparison:
    """Compare two rows by their common seeds, which have the same start model, tasks and order of tasks."""
    common = {(one.seed, one.start) for one in first} & {(one.seed, one.start) for one in second}
    paired = [[one for one in row if (one.seed, one.start) in common] for row in (first, second)]
    return compare(samples(paired[0], "test"), samples(paired[1], "test"))


def _by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    return by_name


def _rows(reached: Sequence[Result], starts: Mapping[str, Result]) -> list[Row]:
    rows: list[Row] = []
    for label, of_seeds in _by_name(reached).items():
        test = samples(of_seeds, "test")
        rows.append(
            Row(
                name=label,
                seeds=[sum(one.test.values()) / len(one.test) for one in of_seeds],
                test=resolve_rate(test),
                gain=compare(samples([starts[one.start] for one in of_seeds], "test"), test).gain,
                unseen=resolve_rate(samples(of_seeds, "test_unseen")),
                tokens_to_goal=[one.tokens_to_goal for one in of_seeds if one.tokens_to_goal is not None],
                seconds=sum(one.seconds for one in of_seeds) / len(of_seeds),
            )
        )
    return sorted(rows, key=lambda row: -row.test.rate)


def samples(of_seeds: Sequence[Result], split: str) -> dict[str, list[bool]]:
    """Return task -> whether each seed's model resolved it."""
    found: dict[str, list[bool]] = {}
    for result in of_seeds:
        for task, resolved in getattr(result, split).items():
            found.setdefault(task, []).append(resolved)
    return found
