"""Examples are run before they are printed. `FIXED` tells a program whether it runs with the fix."""

import asyncio

import pytest

from hone.curate.mining.candidates import CommitRejected, Reason
from hone.curate.mining.claims import TEST, find_claims
from hone.curate.mining.examples import find_examples
from hone.grading.run import TestRun
from hone.types import TestStatus

GOLD = "the fix"


def status(text: str, fixed: bool) -> TestStatus:
    names: dict[str, object] = {"FIXED": fixed}
    try:
        exec(compile(text, "example", "exec"), names)
        names[TEST]()  # type: ignore[operator]
    except Exception:
        return TestStatus.FAILED
    return TestStatus.PASSED


def examples(body: str, *, unfinished: str | None = None, reveals=lambda text: False):
    """Return the examples of a test with this body."""
    source = "def test_it():\n" + "".join(f"    {line}\n" for line in body.splitlines())

    async def run(files, patch):
        statuses = {f"{name}::{TEST}": status(text, patch == GOLD) for name, text in files.items()}
        log = "".join(
            f"___ ERROR collecting {name} ___\nAssertionError while it was imported: assert  {number}\n"
            for number, name in enumerate(files)
        )
        return TestRun(
            statuses=statuses, finished=patch != unfinished, log=f"=== ERRORS ===\n{log}=== end ===\n"
        )

    claims = find_claims({"t.py": source}, ["t.py::test_it"], {})
    return asyncio.run(find_examples(claims, run, GOLD, reveals))


def test_assertion_that_only_the_fix_makes_true_is_printed_with_its_error():
    found = examples("assert FIXED")
    assert found.texts == ("```python\nassert FIXED\n# today: AssertionError: assert  0\n```",)
    assert found.shown == {"t.py::test_it": {(0, 0)}}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ("assert True", "kept"),
        ("assert MISSING", "unknown"),
        ("assert not FIXED", "unknown"),
        ("assert FIXED == 2", "unknown"),
    ],
)
def test_assertion_that_does_not_change_is_not_printed(body, where):
    found = examples(body)
    assert (found.texts, found.shown) == ((), {})
    assert len(getattr(found.findings["t.py::test_it"], where)) == 1


def test_true_assertions_beside_a_false_one_are_left_out():
    (text,) = examples("size = 1\nassert size\nassert FIXED\nassert size == 1").texts
    assert next(line for line in text.splitlines() if "assert " in line) == "assert FIXED"
    assert "size" not in text


def test_program_that_fails_as_a_whole_shows_one_assertion():
    (text,) = examples("items = [FIXED]\nassert items.pop()\nassert items.pop() is True").texts
    assert text.count("assert items.pop()") == 1


def test_nothing_is_printed_when_the_code_before_the_fix_hangs():
    assert examples("assert FIXED", unfinished="").texts == ()


def test_examples_that_hang_with_the_fix_are_an_error():
    with pytest.raises(CommitRejected) as caught:
        examples("assert FIXED", unfinished=GOLD)
    assert caught.value.reason is Reason.TOO_SLOW


def test_assertion_that_reveals_the_fix_is_not_printed():
    (text,) = examples("assert FIXED\nassert FIXED == 1", reveals=lambda text: "== 1" in text).texts
    assert "== 1" not in text


def test_at_most_twelve_assertions_are_printed():
    (text,) = examples("\n".join(f"assert FIXED or {n} < 0" for n in range(30))).texts
    assert text.count("assert FIXED") == 12


@pytest.mark.parametrize(("reported", "printed"), [(True, 1), (False, 0)])
def test_program_without_an_error_before_the_fix_is_not_printed(reported, printed):
    """A program that is missing from the second run's reports, as after a crash, shows no bug."""
    source = "def test_it():\n    assert FIXED\n"
    runs = []

    async def run(files, patch):
        runs.append(patch)
        lost = len(runs) == 3 and not reported  # the first run of the second round, without the fix
        found = (
            {} if lost else {f"{name}::{TEST}": status(text, patch == GOLD) for name, text in files.items()}
        )
        return TestRun(statuses=found, finished=True, log="")

    claims = find_claims({"t.py": source}, ["t.py::test_it"], {})
    found = asyncio.run(find_examples(claims, run, GOLD, lambda text: False))
    assert runs == ["", GOLD, "", GOLD]
    assert len(found.texts) == printed
