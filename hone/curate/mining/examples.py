"""Examples of a statement: claims of the tests that fail without the fix and hold with it, each run before it
is printed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hone.curate.mining.candidates import CommitRejected, Reason
from hone.curate.mining.claims import TEST, Claim, Place, join
from hone.curate.runner import last_line
from hone.curate.statements import parse_messages
from hone.grading.run import TestRun
from hone.types import TestStatus

MAX_TRIED = 240  # claims of a commit
_SHOWN = 12  # claims of a statement
_SHOWN_TESTS = 6
_LINES = 70  # of all examples
_MESSAGE = 140  # characters
_REPORTED = (TestStatus.FAILED, TestStatus.ERROR)
_HOLDS = f"\n\ndef {TEST}():\n    pass\n"  # passes where the program above it ends without an error
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}|/tmp/\S+")

RunFiles = Callable[[Mapping[str, str], str], Awaitable[TestRun]]
"""Runs test files, path -> text, on the tree before the fix after a patch, in a fresh sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the runs without and with the fix say about one test function."""

    fixed: tuple[Claim, ...] = ()  # fail without the fix and hold with it
    kept: tuple[Claim, ...] = ()  # hold in both
    unknown: tuple[Claim, ...] = ()  # do not hold outside of their test


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The examples of a statement."""

    texts: tuple[str, ...]  # programs with the error of each assertion in a comment
    shown: Mapping[str, frozenset[Place]]  # test function -> the assertions in the examples
    findings: Mapping[str, Findings]


async def find_examples(
    claims: Mapping[str, Sequence[Claim]], run: RunFiles, gold_patch: str, reveals: Callable[[str], bool]
) -> Examples:
    """Return the examples that fail before the fix and hold after it, in two runs each.

    Args:
        claims: test function -> its claims.
        reveals: whether a text reveals the fix.
    Raises:
        CommitRejected: the claims do not end with the fix.
        GraderError: no sandbox starts.
    """
    tried = [claim for each in claims.values() for claim in each][:MAX_TRIED]
    fixed, kept, _ = await _try(tried, run, gold_patch)
    findings = {
        test: Findings(
            fixed=tuple(each for each in own if each in fixed),
            kept=tuple(each for each in own if each in kept),
            unknown=tuple(each for each in own if each not in fixed and each not in kept),
        )
        for test, own in claims.items()
    }
    chosen = _choose({test: each.fixed for test, each in findings.items()}, reveals)
    joined = {test: join(own) for test, own in chosen.items()}
    single = [claim for own in chosen.values() for claim in own]
    programs = [each for each in joined.values() if each not in single]
    both, _, messages = await _try([*single, *programs], run, gold_patch, with_error=True)
    texts: list[str] = []
    shown: dict[str, frozenset[Place]] = {}
    for test, own in chosen.items():
        confirmed = [claim for claim in own if claim in both]
        if not confirmed:
            continue
        whole = joined[test] if joined[test] in both and len(confirmed) == len(own) else confirmed[0]
        errors = {claim.places[0]: messages.get(_key(claim), "") for claim in confirmed}
        texts.append(_print(whole, errors))
        shown[test] = frozenset(whole.places)
    return Examples(texts=tuple(texts), shown=shown, findings=findings)


async def _try(
    claims: Sequence[Claim], run: RunFiles, gold_patch: str, *, with_error: bool = False
) -> tuple[list[Claim], list[Claim], dict[tuple[str, tuple[Place, ...]], str]]:
    """Return the claims that the fix makes hold, those that always hold, and the errors of the first.

    Args:
        with_error: count a claim as failing only where the run reports its failure or its log has an error; a
            program that is merely missing from the reports says nothing about the bug. A log of many
            programs is cut, so this is for a few.
    """
    if not claims:
        return [], [], {}
    names = {f"test_example_{number}.py": claim for number, claim in enumerate(claims)}
    files = {name: _program(claim) for name, claim in names.items()}
    before, after = await run(files, ""), await run(files, gold_patch)
    if not after.finished:
        raise CommitRejected(Reason.TOO_SLOW, f"its examples do not end with the fix: {last_line(after.log)}")
    fixed: list[Claim] = []
    kept: list[Claim] = []
    errors = parse_messages(before.log, names)
    for name, claim in names.items():
        then, now = (each.statuses.get(f"{name}::{TEST}") for each in (before, after))
        if now is not TestStatus.PASSED or not before.finished:
            continue
        if then is TestStatus.PASSED:
            kept.append(claim)
        elif not with_error or then in _REPORTED or name in errors:
            fixed.append(claim)
    return fixed, kept, {_key(names[name]): message for name, message in errors.items()}


def _key(claim: Claim) -> tuple[str, tuple[Place, ...]]:
    return claim.test, claim.places


def _program(claim: Claim) -> str:
    return f"{claim.code}\n" if claim.arguments else f"{claim.code}\n{_HOLDS}"


def _choose(fixed: Mapping[str, Sequence[Claim]], reveals: Callable[[str], bool]) -> dict[str, list[Claim]]:
    """Return some claims of several tests: first one of each, then more."""
    chosen: dict[str, list[Claim]] = {}
    codes: set[str] = set()
    for claim in _in_turn(fixed.values()):
        own = chosen.get(claim.test, [])
        candidate = join([*own, claim])
        others = [join(each) for test, each in chosen.items() if test != claim.test]
        lines = sum(len(each.code.splitlines()) for each in [*others, candidate])
        full = len(codes) == _SHOWN or (not own and len(chosen) == _SHOWN_TESTS) or lines > _LINES
        if full or claim.code in codes or reveals(claim.code) or reveals(candidate.code):
            continue
        codes.add(claim.code)
        chosen[claim.test] = [*own, claim]
    return chosen


def _in_turn(groups: Iterable[Sequence[Claim]]) -> Iterator[Claim]:
    """Yield the first claim of each group, then the second of each, and so on."""
    rows = list(groups)
    for number in range(max(map(len, rows), default=0)):
        yield from (row[number] for row in rows if number < len(row))


def _print(claim: Claim, errors: Mapping[Place, str]) -> str:
    """Return the program with the error of each assertion in a comment below it."""
    statements = {
        place: f"{text}\n{_comment(errors[place])}" if errors.get(place) else text
        for place, text in claim.statements.items()
    }
    return f"```python\n{dataclasses.replace(claim, statements=statements).code}\n```"


def _comment(message: str) -> str:
    first = _ADDRESS.sub("...", message.strip().partition("\n")[0])
    return f"# today: {first if len(first) <= _MESSAGE else first[:_MESSAGE] + ' ...'}"
