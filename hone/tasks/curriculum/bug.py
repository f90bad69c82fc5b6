"""What a family of bugs produces, and the random choices it makes on the way."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

MARK = "@"  # stands in a template for the text that the bug got wrong

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

    code: str  # MARK where the bug sits; a line that is only MARK (and indentation) is one the bug left out
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
    """The right fix as a developer would type it for sed; see `Edit`."""

    pattern: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One seeded bug, before it is placed in a repository.

    `bad` and `right` are texts for the MARK in the shape's code; an empty `bad` means that a whole line is
    missing. `fix` makes `right` of `bad`; without it `bad` is replaced by `right` as they stand. Each of
    `wrong` (the most tempting first) is a replacement that does not mend it. `actual` and `expected` are
    clauses about "it".
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
    """The random choices of one task; every name is handed out once.

    Of each list of alternatives (shapes of code, wordings, operators) only the first `variety` are drawn.
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
        """Different digits from 2 to 9."""
        return self.random.sample(range(2, 10), count)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability
