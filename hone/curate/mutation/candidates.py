"""Candidates: single mutations, and combinations of several."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hone.curate.mutation.operators import expressions, statements, values
from hone.curate.mutation.sites import SiteFinder
from hone.curate.mutation.source import Change, Source, apply
from hone.tasks.diffs import file_diff
from hone.tasks.errors import TaskError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change by one operator."""

    path: str
    operator: str
    function: str  # qualified name, such as "Parser.parse", or the name of a constant
    line: int  # first changed line of the original text
    block: int | None  # number of the block in its file; None outside of functions
    change: Change


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One bug: a mutation or a combination of several."""

    mutations: tuple[Mutation, ...]
    before: Mapping[str, str]  # path -> text of the changed files
    after: Mapping[str, str]

    @property
    def kind(self) -> str:
        """ "single", "compound" or "cross-file"."""
        if len(self.mutations) == 1:
            return "single"
        return "compound" if len(self.after) == 1 else "cross-file"

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(mutation.operator for mutation in self.mutations)

    @cached_property
    def gold_patch(self) -> str:
        """The fix as a unified diff."""
        return "".join(file_diff(path, self.after[path], self.before[path]) for path in sorted(self.after))

    @cached_property
    def key(self) -> str:
        """A hash of the changed files, 16 hex digits: equal bugs of different operators have equal keys."""
        texts = json.dumps(dict(sorted(self.after.items())))
        return hashlib.sha256(texts.encode()).hexdigest()[:16]


class Module:
    """A file of the repository with its blocks and possible mutations."""

    def __init__(self, path: str, text: str) -> None:
        """Raises TaskError when the file cannot be parsed."""
        self.source = Source(path, text)
        try:
            self._walk = SiteFinder(self.source)
        except RecursionError:
            raise TaskError(f"{path}: nested too deeply") from None
        self.blocks = self._walk.blocks

    def mutations(self) -> Iterator[Mutation]:
        """Yield every mutation of the file; some change nothing or do not compile."""
        for site in self._walk.sites:
            for operator, change in (*expressions.bugs(site), *values.bugs(site), *statements.bugs(site)):
                yield Mutation(
                    path=self.source.path,
                    operator=operator,
                    function=site.scope.name,
                    line=self.source.line(min(edit.start for edit in change)),
                    block=site.block,
                    change=change,
                )


def combine(modules: Mapping[str, Module], mutations: Sequence[Mutation]) -> Candidate | None:
    """Return the combined bug; None where nothing changes, two mutations overlap, or it does not compile."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for path in sorted({mutation.path for mutation in mutations}):
        source = modules[path].source
        edits = [edit for mutation in mutations if mutation.path == path for edit in mutation.change]
        data = apply(source.data, edits)
        if data is None or data == source.data or not _compiles(data):
            return None
        before[path], after[path] = source.text, data.decode()
    return Candidate(mutations=tuple(mutations), before=before, after=after)


def _compiles(data: bytes) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(data, "<candidate>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
