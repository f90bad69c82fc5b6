"""The order of candidates: varied, and determined by the seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hone.curate.mutation.candidates import Candidate, Module, Mutation, combine

_COMPOUND, _CROSS_FILE = 0.15, 0.10  # target shares of the tasks
_TRIES = 20  # draws per combination


def ordered(mutations: Iterable[Mutation], rng: random.Random) -> list[Mutation]:
    """Interleave operators, and functions within each operator; shuffle the rest."""
    by_operator: dict[str, dict[tuple[str, str], list[Mutation]]] = {}
    for mutation in mutations:
        functions = by_operator.setdefault(mutation.operator, {})
        functions.setdefault((mutation.path, mutation.function), []).append(mutation)
    queues: list[list[Mutation]] = []
    for _, functions in sorted(by_operator.items()):
        groups = list(functions.values())
        rng.shuffle(groups)
        for group in groups:
            rng.shuffle(group)
        queues.append(list(_interleave(groups)))
    rng.shuffle(queues)
    return list(_interleave(queues))


def _interleave(queues: Sequence[Sequence[Mutation]]) -> Iterator[Mutation]:
    for at in range(max(map(len, queues), default=0)):
        yield from (queue[at] for queue in queues if at < len(queue))


class Schedule:
    """Yields candidates: single mutations in order, and combinations of detected ones."""

    def __init__(
        self, modules: Mapping[str, Module], singles: Iterable[Mutation], rng: random.Random
    ) -> None:
        self._modules, self._rng = modules, rng
        self._singles = iter(ordered(singles, rng))
        self._detected: dict[Mutation, frozenset[str]] = {}  # single mutation -> the tests that detect it
        self._seen: set[str] = set()  # keys of returned candidates
        self._tasks: Counter[str] = Counter()  # tasks by kind
        self.repeated = 0  # candidates that are duplicates or no valid bugs

    def add_detected(self, mutation: Mutation, tests: Iterable[str]) -> None:
        self._detected[mutation] = frozenset(tests)

    def count_task(self, kind: str) -> None:
        self._tasks[kind] += 1

    def batch(self, size: int) -> list[Candidate]:
        """Return the next candidates; fewer than `size` only at the end."""
        chosen: list[Candidate] = []
        wanted = {"compound": _COMPOUND, "cross-file": _CROSS_FILE}
        for kind, share in wanted.items():
            if self._tasks[kind] <= share * self._tasks.total():
                chosen += self._combinations(kind, max(1, round(share * size)))
        while len(chosen) < size:
            mutation = next(self._singles, None)
            if mutation is None:
                break
            candidate = self._new([mutation])
            if candidate is not None:
                chosen.append(candidate)
            else:
                self.repeated += 1
        return chosen

    def tests_of(self, candidate: Candidate) -> list[frozenset[str]]:
        """Return the tests that detect each mutation of a combination."""
        return [self._detected[mutation] for mutation in candidate.mutations]

    def _combinations(self, kind: str, count: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        for _ in range(_TRIES * count):
            if len(self._detected) < 2 or len(chosen) == count:
                break
            one = self._rng.choice(list(self._detected))
            others = [each for each in self._detected if self._can_combine(one, each, kind)]
            if not others:
                continue
            number = 2 if kind == "cross-file" or self._rng.random() < 0.7 else 3
            candidate = self._new([one, *self._rng.sample(others, min(number - 1, len(others)))])
            if candidate is not None:
                chosen.append(candidate)
        return chosen

    def _new(self, mutations: Sequence[Mutation]) -> Candidate | None:
        candidate = combine(self._modules, mutations)
        if candidate is None or candidate.key in self._seen:
            return None
        self._seen.add(candidate.key)
        return candidate

    def _can_combine(self, one: Mutation, other: Mutation, kind: str) -> bool:
        """Return whether two mutations are of one file, or of two files that the same tests detect."""
        if one is other:
            return False
        same_tests = bool(self._detected[one] & self._detected[other])
        if kind == "cross-file":
            return one.path != other.path and same_tests
        return one.path == other.path and (one.function == other.function or same_tests)
