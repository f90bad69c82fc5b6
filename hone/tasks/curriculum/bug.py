"""A seeded bug, the random choices behind it, and one-line edits with their sed commands."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
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

    code: str  # MARK once on each faulty line; one with only MARK (and indentation) is missing when buggy
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
class Bug:
    """One seeded bug, before it is placed in a repository.

    `bad` and `right` replace MARK in the shape's code; an empty `bad` means that a whole line is missing.
    `fix` turns `bad` into `right`; by default it replaces the text. `wrong` are replacements that do not fix
    the bug, the most plausible first. All of them are the same on each faulty line. `actual` and `expected`
    are clauses about "it".
    """

    shape: Shape
    bad: str
    right: str
    wrong: Sequence[str]
    actual: str
    expected: str
    fix: tuple[str, str] | None = None  # pattern and replacement of sed; see `Edit`
    helper: str = ""  # source of a function that the shape's code calls

    @property
    def buggy(self) -> str:
        """The source of the function, and of what belongs to it, with the bug."""
        lines = [line for line in self.shape.code.splitlines() if self.bad or MARK not in line]
        return "\n".join(lines).replace(MARK, self.bad) + "\n"

    @property
    def fixed(self) -> str:
        """The same source without the bug."""
        return self.shape.code.replace(MARK, self.right) + "\n"


Family = Callable[["Draw"], Bug]


class Draw:
    """The random choices of one task; every name is drawn once.

    Only the first `variety` alternatives of a choice (code shape, wording, operator) are used.
    """

    def __init__(self, source: random.Random, variety: int, words: Sequence[str] | None = None) -> None:
        self.random = source
        self._variety = variety
        words = WORDS if words is None else words
        self._unused = source.sample(words, len(words))

    def branch(self) -> Draw:
        """Return another draw, whose names are not used here, but may be used here later."""
        return Draw(self.random, self._variety, self._unused)

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


# What `apply` supports of sed: plain characters, `.*`, `-*`, `[0-9]`, `[a-z]*`, groups, brackets.
_OLD = re.compile(r"(?:[\w ,()+\-<>=!%\]]|-\*|\.\*|\[0-9\]|\[a-z\]\*|\\[()\[\]])+")
_NEW = re.compile(r"(?:[\w ,()+\-<>=!%*:\[\]\"&]|\\[12])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the first match of `old` on line `line` (from 1) by `new`; an empty `old` adds `new` after it.

    `old` is a basic regular expression as sed's, `new` a replacement that may name its groups (`\\1`) and
    the whole match (`&`). Raises ValueError for texts that would need escapes in sed or in the shell.

    >>> Edit(line=1, old=r"(\\(.*\\), \\(.*\\))", new=r"(\\2, \\1)").apply("print(tax, fee)\\n")
    'print(fee, tax)\\n'
    """

    line: int
    old: str
    new: str

    def __post_init__(self) -> None:
        if self.line < 1:
            raise ValueError(f"{self}: lines are counted from 1")
        if (self.old and not _OLD.fullmatch(self.old)) or not _NEW.fullmatch(self.new):
            raise ValueError(f"{self} needs escapes in sed, choose plainer texts")

    def apply(self, text: str) -> str:
        """Return `text` after the edit; `command` makes the same change in a file."""
        lines = text.splitlines()
        if self.old:
            pattern, new = _python_pattern(self.old), self.new.replace("&", r"\g<0>")
            lines[self.line - 1] = re.sub(pattern, new, lines[self.line - 1], count=1)
        else:
            lines.insert(self.line, self.new)
        return "\n".join(lines) + "\n"

    def replacement(self, text: str) -> str:
        """Return line `line` after the edit; two lines where one was added."""
        after = self.apply(text).splitlines()
        return "\n".join(after[self.line - 1 : self.line + (0 if self.old else 1)])

    def command(self, path: str) -> str:
        script = f"s/{self.old}/{self.new}/" if self.old else f"a\\{self.new}"
        return f"sed -i '{self.line}{script}' {path}"


def _python_pattern(old: str) -> str:
    """Translate a basic regular expression of sed, where `(` is literal and `\\(` opens a group."""
    return re.sub(r"(\\?)([()+])", lambda m: m[2] if m[1] else "\\" + m[2], old)
