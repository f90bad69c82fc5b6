import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.curate.mining.statement import read_fix, without_fix
from hone.curate.statements import find_leak

PATCH = """\
diff --git a/shop/prices.py b/shop/prices.py
index 1111111..2222222 100644
--- a/shop/prices.py
+++ b/shop/prices.py
@@ -1,3 +1,4 @@
 def total(prices):
-    return sum(prices[1:])
+    checked_prices = list(prices)
+    return sum(checked_prices)
"""
KNOWN = {"def", "total", "prices", "return", "sum", "list"}
FIX = read_fix(PATCH, KNOWN, ["def test_total(): assert total([1]) == 1"])


def cleaned(text: str, *, is_commit: bool = True) -> str:
    return without_fix(text, FIX, is_commit=is_commit)


def test_description_of_the_bug_is_kept():
    text = "The total is wrong\n\nThe first price\nis left out:\n\n```\nf(1)\n\nf(2)\n```\n\nSeen on 3.12."
    assert cleaned(text) == text


@pytest.mark.parametrize(
    "leak",
    [
        "return sum(checked_prices)",
        "    return   sum(checked_prices)",
        "The cure is `checked_prices = list(prices)` of course.",
        "It needs checked_prices first.",
        "```diff\n-a\n+b\n```",
        "diff --git a/x b/x\n--- a/x\n+++ b/x",
        "```\ndef total(prices):\n\n    return sum(checked_prices)\n```",
        "Use a list of all prices.",
        "This fix takes all prices.",
        "Fixed by taking all of them.",
        "Closes #12.",
        "* Replace the slice",
    ],
)
def test_paragraph_that_reveals_the_fix_is_removed(leak):
    assert cleaned(f"The total is wrong\n\nOne price is lost.\n\n{leak}\n\nIt hurts.") == (
        "The total is wrong\n\nOne price is lost.\n\nIt hurts."
    )


def test_list_items_are_judged_one_by_one():
    assert cleaned("Wrong total\n\n* it is 5\n* Add tests\n* not 6") == "Wrong total\n\n* it is 5\n\n* not 6"


def test_links_to_the_fix_are_removed():
    text = "Wrong total\n\nSee https://host.example/me/it/pull/12 and https://docs.example/total for more."
    assert cleaned(text) == "Wrong total\n\nSee  and https://docs.example/total for more."


def test_names_that_the_tests_use_are_kept():
    fix = read_fix(PATCH, KNOWN, ["assert checked_prices"])
    text = "The total is wrong\n\nIt should look at checked_prices."
    assert without_fix(text, fix, is_commit=True) == text


def test_imperative_of_a_reporter_is_kept():
    text = "Wrong total\n\nUse any list and see. Call total([1]) for instance."
    assert cleaned(text, is_commit=False) == text


LINES = st.text(alphabet="abc (){}=.:_'\"+-*#>`1\t\\[]", min_size=1, max_size=60)


@given(st.lists(LINES, min_size=1, max_size=8), st.data())
def test_no_added_line_remains_in_any_text(added, data):
    patch = "@@ -1 +1,9 @@\n" + "".join(f"+{line}\n" for line in added)
    fix = read_fix(patch, set(), [])
    piece = st.one_of(st.sampled_from(added), LINES, st.sampled_from(["", "Why. ", "\n\n", " - ", "```"]))
    pieces = data.draw(st.lists(piece, max_size=12))
    text = data.draw(st.sampled_from(["\n", " ", ""])).join(pieces)
    left = without_fix(text, fix, is_commit=data.draw(st.booleans()))
    assert find_leak(left, fix.lines) is None
    flat = " ".join(left.split())
    for line in added:
        reduced = " ".join(line.split())
        assert len(reduced.replace(" ", "")) < 12 or reduced not in flat
