"""Find out why tests change from run to run: rerun them with one difference at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from hone.grading.variation import FACTORS, Variation, variation_of
from hone.tasks.errors import first_few
from hone.types import TestStatus, Verdict

CHANCE = "chance"
CAUSES: Mapping[str, str] = {  # cause -> how a test with it changes
    **{factor: f"with {name}" for factor, name in FACTORS.items()},
    CHANCE: "from run to run",
}
_RERUNS = 3  # with a factor alone, and as many without any


def unstable(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the tests whose status differs between the verdicts."""
    tests = dict.fromkeys(test for verdict in verdicts for test in verdict.tests)
    return [test for test in tests if len({status_in(verdict, test) for verdict in verdicts}) > 1]


def status_in(verdict: Verdict, test: str) -> TestStatus:
    return verdict.tests.get(test, TestStatus.MISSING)


async def find_causes(
    run: Callable[[Variation], Awaitable[Verdict]], verdicts: Sequence[Verdict], known: Collection[str] = ()
) -> dict[str, str]:
    """Return the cause, a key of CAUSES, of each test that is unstable; stable tests cost no run.

    A factor is the cause if the test changes with it alone, each time, and never without it.

    Args:
        run: grades the same patch again.
        verdicts: of `variation_of(0)`, `variation_of(1)`, ...
        known: tests whose cause is known.
    """
    first = verdicts[0]
    causes = dict.fromkeys((test for test in unstable(verdicts) if test not in known), CHANCE)
    unexplained = set(causes)
    for _ in range(_RERUNS if causes else 0):
        plain = await run(Variation())
        unexplained -= {test for test in unexplained if _differ(test, plain, first)}
    for number, verdict in enumerate(verdicts):
        for factor in variation_of(number).factors:
            changed = {test for test in unexplained if _differ(test, verdict, first)}
            for _ in range(_RERUNS if changed else 0):
                alone = await run(variation_of(number).only(factor))
                changed = {test for test in changed if _differ(test, alone, first)}
                if not changed:
                    break
            causes |= dict.fromkeys(changed, factor)
            unexplained -= changed
    return causes


def _differ(test: str, verdict: Verdict, other: Verdict) -> bool:
    return status_in(verdict, test) is not status_in(other, test)


def describe(causes: Mapping[str, str]) -> str:
    """Return which tests change and how, such as "t.py::test_a changes with the order of tests".

    >>> describe({"t.py::test_a": "order", "t.py::test_b": "chance"})
    't.py::test_a changes with the order of tests; t.py::test_b changes from run to run'
    """
    by_cause: dict[str, list[str]] = {}
    for test, cause in sorted(causes.items()):
        by_cause.setdefault(cause, []).append(test)
    parts = [
        f"{first_few(by_cause[cause])} {'changes' if len(by_cause[cause]) == 1 else 'change'} {how}"
        for cause, how in CAUSES.items()
        if cause in by_cause
    ]
    return "; ".join(parts)
