"""Fairness of a mined task: whether statement, documentation and code tell what the hidden tests demand.

fair      everything that they demand is told
usable    tests of which examples are shown demand further texts that nothing tells
refused   a test without an example demands names, texts or files that nothing tells, or limits the time that
          the code may take
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hone.curate.examples import parse_module
from hone.curate.mining.assertions import is_assertion, plain_statements
from hone.curate.mining.candidates import CommitParts, CommitRejected, Reason, identifiers, words
from hone.curate.mining.claims import Claim, find_function, parse_modules
from hone.curate.mining.examples import Examples, Findings

_SHORT = 3  # characters; shorter texts are told by chance
_CLOCKS = {"default_timer", "monotonic", "perf_counter", "process_time", "timeit"}
_LIMITS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_NAMED = 3  # demands in a reason
# Such as tests/test_url.py::TestUrl::test_no_scheme[a], test_url.py, TestUrl.test_it and tests/data/
_TEST_WORD = re.compile(
    r"[\w./:-]*\b(?:tests?/|tests?_|[a-z]\w*_tests?\b|Test[A-Z])[\w./:-]*(?:\[[^\]\s]*\])?"
)


class Rating(StrEnum):
    FAIR = "fair"
    USABLE = "usable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    rating: Rating
    untold: tuple[str, ...]  # what the tests demand and nothing tells


def new_names(parts: CommitParts) -> set[str]:
    """Return the names that the changed tests use and only the fix introduces."""
    used = identifiers(parts.tests_after.values()) & identifiers(parts.sources_after.values())
    return used - parts.known - set(dir(builtins))


def rate(
    prose: str, parts: CommitParts, tests: Sequence[str], examples: Examples, min_letters: int
) -> Fairness:
    """Return the fairness of a task. Raises CommitRejected when the tests can only be guessed.

    Args:
        prose: the issue, or the commit message, without examples.
        tests: ids of the fail-to-pass tests.
        min_letters: of the prose without the names of tests, where a test has no example.
    """
    after, before = parse_modules(parts.tests_after), parse_modules(parts.tests_before)
    told = " ".join("\n".join([prose, *examples.texts, parts.before]).split())
    new = new_names(parts) - words([prose, *examples.texts])
    letters = sum(letter.isalpha() for letter in without_tests(prose))
    untold: list[str] = []
    for test in dict.fromkeys(test.partition("[")[0] for test in tests):
        function = _function(after, test)
        if function is None:
            raise CommitRejected(Reason.UNFAIR, f"the code of {test} is in none of the changed test files")
        if _limits_time(function):
            raise CommitRejected(Reason.UNFAIR, f"{test} limits the time that the code may take")
        found = examples.findings.get(test, Findings())
        shown = examples.shown.get(test, frozenset())
        if shown or (found.kept and not found.fixed and not found.unknown):
            left = [claim for claim in found.fixed if not set(claim.places) <= shown]
            untold += [text for text in _texts_of(left) if not _is_told(text, told)]
            continue
        earlier = _function(before, test)
        if earlier is not None and ast.dump(earlier) == ast.dump(function):
            continue  # it fails only because its file cannot be imported before the fix
        missing = [text for text in _literals(function.body) if not _is_told(text, told)]
        missing += sorted(new & identifiers([ast.unparse(function)]))
        missing += [path for path in parts.data if path.rpartition("/")[2] in ast.unparse(function)]
        if missing:
            named = ", ".join(map(repr, missing[:_NAMED]))
            raise CommitRejected(Reason.UNFAIR, f"nothing tells what {test} demands: {named}")
        if letters < min_letters:
            raise CommitRejected(Reason.UNFAIR, f"no example shows what {test} demands")
    rating = Rating.USABLE if untold else Rating.FAIR
    return Fairness(rating=rating, untold=tuple(dict.fromkeys(untold)))


def without_tests(prose: str) -> str:
    """Return a text without the ids, names and files of tests: a list of them says nothing of the bug."""
    return _TEST_WORD.sub(" ", prose)


def _function(modules: Mapping[str, ast.Module], test: str) -> ast.FunctionDef | None:
    module = modules.get(test.partition("::")[0])
    return find_function(module, test)[0] if module is not None else None


def _is_told(text: str, told: str) -> bool:
    return len(text) < _SHORT or " ".join(text.split()) in told


def _texts_of(claims: Iterable[Claim]) -> Iterator[str]:
    for claim in claims:
        yield from _literals(parse_module(claim.statements[place]).body[0] for place in claim.places)


def _literals(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the texts that the assertions among statements compare with."""
    for statement in plain_statements(list(statements)):
        if is_assertion(statement):
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def _limits_time(function: ast.FunctionDef) -> bool:
    """Return whether a test reads a clock and compares by size."""
    code = ast.unparse(function)
    reads = bool(words([code]) & _CLOCKS) or "time.time()" in code
    compares = (node for node in ast.walk(function) if isinstance(node, ast.Compare))
    return reads and any(isinstance(operator, _LIMITS) for node in compares for operator in node.ops)
