import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.curate.mining.messages import Likelihood, classify_message, references, strip_tool_text
from hone.curate.mining.refusal import Reason


@pytest.mark.parametrize(
    "message",
    [
        "Fix total of one price",
        "Total is wrong for one price (#12)",
        "Raise ValueError for negative prices",
        "fix(prices): leading zero is lost",
        "Improve totals\n\nCloses #4",
        "Merge pull request #7 from me/branch\n\nPrices no longer crash on None",
    ],
)
def test_message_about_a_bug_is_clear(message):
    assert classify_message(message) is Likelihood.CLEAR


@pytest.mark.parametrize("message", ["Totals of nested prices", "Support tuples", "Add a currency"])
def test_ambiguous_message_is_unclear(message):
    assert classify_message(message) is Likelihood.UNCLEAR


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('Revert "Fix totals"\n\nThis reverts commit 123.', Reason.MERGED_BRANCH),
        ("Merge branch 'stable' into main", Reason.MERGED_BRANCH),
        ("Release 2.1.0", Reason.RELEASE),
        ("Bump pytest from 7 to 8", Reason.RELEASE),
        ("1.2.3", Reason.RELEASE),
        ("Fix typo in error message", Reason.NO_FIX),
        ("docs: fix the example", Reason.NO_FIX),
        ("Refactor totals", Reason.NO_FIX),
        ("chore: fix lint", Reason.NO_FIX),
        ("Fix tests on Windows", Reason.NO_FIX),
    ],
)
def test_message_of_other_work_is_rejected(message, reason):
    assert classify_message(message) is reason


def test_text_added_by_tools_is_removed():
    message = (
        "Merge pull request #7 from me/branch\n\nFix totals (#7)\n\nThey were off by one.\n\n"
        "Co-authored-by: Someone <a@b.c>\nSigned-off-by: Me <me@b.c>\nChange-Id: I123\n"
    )
    assert strip_tool_text(message) == "Fix totals\n\nThey were off by one."


@pytest.mark.parametrize(
    ("title", "kept"),
    [
        ("Fix totals (fixes #3, #4).", "Fix totals."),
        ("Fix totals (issue601)", "Fix totals"),
        ("Fix totals, closes #3", "Fix totals"),
        ("Fix total(3) being wrong", "Fix total(3) being wrong"),
    ],
)
def test_issue_numbers_of_a_title_are_removed(title, kept):
    assert strip_tool_text(title) == kept


def test_references_are_found_with_the_merge_number_last():
    assert references("Merge pull request #70 from me/x\n\nFix it, closes #12 and gh-13") == [12, 13, 70]
    assert references("See https://tracker.example/me/it/issues/5 and issue601") == [5, 601]
    assert references("Since version 1.5, colour #fff and a&#39;b") == []


@given(st.text())
def test_any_message_can_be_classified(message):
    assert isinstance(classify_message(message), Likelihood | Reason)
    assert len(strip_tool_text(message)) <= len(message)
    references(message)
