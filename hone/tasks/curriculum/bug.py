"""A seeded bug, and the random choices behind it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MARK = "@"  # placeholder in a template for the buggy text

# fmt: off
WORDS = (
    "price", "tax", "cost", "fee", "bonus", "stock", "rate", "score", "level",
    "width", "height", "depth", "weight", "speed", "gap", "rank", "share", "unit",
    "load", "rent", "wage", "debt", "gain", "loss", "dose", "mass", "area",
    "heat", "rain", "wind", "crop", "seed", "fuel", "gold", "iron", "salt",
    "milk", "bread", "fruit", "grain",
)
# fmt: on
LOCALS = ("total", "result")


class Shape(NamedTuple):
    """One way to write a function: its source and arguments to call it with."""

    code: str  # MARK at the bug; a line with only MARK (and indentation) is missing in the buggy code
    cases: Sequence[tuple[Any, ...]]
    subject: str = ""  # of the sentences, where shapes differ in it

    @property
    def function(self) -> str:
        """The name of the function."""
        return self._signature()[1]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(part.split("=")[0].strip() for part in self._signature()[2].split(","))

    def _signature(self) -> re.Match[str]:
        found = re.search(r"^def (\w+)\((.*)\):$", self.code, re.MULTILINE)
        assert found is not None, self.code
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """The right fix as a sed substitution; see `Edit`."""

    pattern: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One seeded bug, before it is placed in a repository.

    `bad` and `right` replace MARK in the shape's code; an empty `bad` means that a whole line is missing.
    `fix` turns `bad` into `right`; by default it replaces the text. `wrong` are replacements that do not fix
    the bug, the most plausible first. `actual` and `expected` are clauses about "it".
    """

    shape: Shape
    bad: str
    right: str
    wrong: Sequence[str]
    actual: str
    expected: str
    fix: Substitution | None = None
    helper: str = ""  # source of a function that the shape's code calls


class Draw:
    """The random choices of one task; every name is drawn once.

    Only the first `variety` alternatives of a choice (code shape, wording, operator) are used.
    """

    def __init__(self, source: random.Random, variety: int) -> None:
        self.random = source
        self._variety = variety
        self._unused = source.sample(WORDS, len(WORDS))

    def name(self) -> str:
        return self._unused.pop()

    def names(self, count: int) -> list[str]:
        return [self.name() for _ in range(count)]

    def local(self) -> str:
        return self.pick(*LOCALS)

    def pick(self, *options: T) -> T:
        return self.random.choice(options[: self._variety])

    def digits(self, count: int) -> list[int]:
        """Return distinct digits from 2 to 9."""
        return self.random.sample(range(2, 10), count)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability
