"""The order of candidates: varied, and determined by the seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hone.curate.mutation.candidates import Candidate, Module, Mutation, combine

_COMPOUND, _CROSS_FILE = 0.15, 0.10  # target shares of the tasks
_TRIES = 20  # draws per combination


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedMutation:
    """A single mutation and the tests that detect it."""

    mutation: Mutation
    tests: frozenset[str]


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


class DiversityFilter:
    """Rejects candidates that are similar to tasks already found."""

    def __init__(self, per_function: int) -> None:
        self._per_function = per_function
        self._functions: Counter[tuple[str, str]] = Counter()
        self._seen: set[tuple[object, ...]] = set()

    def full(self, candidate: Candidate) -> bool:
        """Return whether every function that the candidate changes has enough tasks."""
        return all(
            self._functions[mutation.path, mutation.function] >= self._per_function
            for mutation in candidate.mutations
        )

    def take(self, candidate: Candidate, failing: Iterable[str]) -> bool:
        """Add a candidate; return False where operators, functions and failing tests equal a known one's."""
        places = tuple(sorted((m.path, m.function, m.operator) for m in candidate.mutations))
        signature = (places, frozenset(failing))
        if signature in self._seen:
            return False
        self._seen.add(signature)
        self._functions.update((m.path, m.function) for m in candidate.mutations)
        return True


class Schedule:
    """Yields candidates: single mutations in order, and combinations of detected ones."""

    def __init__(
        self, modules: Mapping[str, Module], singles: Iterable[Mutation], rng: random.Random
    ) -> None:
        self._modules, self._rng = modules, rng
        self._singles = iter(ordered(singles, rng))
        self._detected: list[DetectedMutation] = []
        self._seen: set[str] = set()  # keys of returned candidates
        self._tasks: Counter[str] = Counter()  # tasks by kind
        self.repeated = 0  # candidates that are duplicates or no valid bugs

    def add_detected(self, mutation: Mutation, tests: Iterable[str]) -> None:
        self._detected.append(DetectedMutation(mutation=mutation, tests=frozenset(tests)))

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
        known = {detected.mutation: detected.tests for detected in self._detected}
        return [known[mutation] for mutation in candidate.mutations]

    def _combinations(self, kind: str, count: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        for _ in range(_TRIES * count):
            if len(self._detected) < 2 or len(chosen) == count:
                break
            one = self._rng.choice(self._detected)
            others = [each for each in self._detected if _can_combine(one, each, kind)]
            if not others:
                continue
            number = 2 if kind == "cross-file" or self._rng.random() < 0.7 else 3
            parts = [one, *self._rng.sample(others, min(number - 1, len(others)))]
            candidate = self._new([part.mutation for part in parts])
            if candidate is not None:
                chosen.append(candidate)
        return chosen

    def _new(self, mutations: Sequence[Mutation]) -> Candidate | None:
        candidate = combine(self._modules, mutations)
        if candidate is None or candidate.key in self._seen:
            return None
        self._seen.add(candidate.key)
        return candidate


def _can_combine(one: DetectedMutation, other: DetectedMutation, kind: str) -> bool:
    """Return whether two mutations are of one file, or of two files that the same tests detect."""
    if one.mutation is other.mutation:
        return False
    if kind == "cross-file":
        return one.mutation.path != other.mutation.path and bool(one.tests & other.tests)
    same = one.mutation.path == other.mutation.path
    return same and (one.mutation.function == other.mutation.function or bool(one.tests & other.tests))
