import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.curate.mining.statement import without_fix
from hone.curate.statements import changed_lines, find_leak

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
FIX = changed_lines(PATCH)


def test_description_of_the_bug_is_kept():
    text = "The total is wrong\n\nThe first price\nis left out:\n\n```\nf(1)\n\nf(2)\n```\n\n* Seen on 3.12."
    assert without_fix(text.replace("\n", "\r\n"), FIX) == text


@pytest.mark.parametrize(
    "leak",
    [
        "return sum(checked_prices)",
        "    return   sum(checked_prices)",
        "The cure is `checked_prices = list(prices)` of course.",
        "```\ndef total(prices):\n    return sum(checked_prices)\n```",
    ],
)
def test_paragraph_that_reveals_the_fix_is_removed(leak):
    text = without_fix(f"The total is wrong\n\nOne price is lost.\n\n{leak}\n\nIt hurts.", FIX)
    assert text == "The total is wrong\n\nOne price is lost.\n\nIt hurts."


LINES = st.text(alphabet="abc (){}=.:_'\"+-*#>`1\t\\[]", min_size=1, max_size=60)


@given(st.lists(LINES, min_size=1, max_size=8), st.data())
def test_no_added_line_remains_in_any_text(added, data):
    patch = "@@ -1 +1,9 @@\n" + "".join(f"+{line}\n" for line in added)
    fix = changed_lines(patch)
    piece = st.one_of(st.sampled_from(added), LINES, st.sampled_from(["", "Why. ", "\n\n", " - ", "```"]))
    pieces = data.draw(st.lists(piece, max_size=12))
    text = data.draw(st.sampled_from(["\n", " ", ""])).join(pieces)
    left = without_fix(text, fix)
    assert find_leak(left, fix) is None
    flat = " ".join(left.split())
    for line in added:
        reduced = " ".join(line.split())
        assert len(reduced.replace(" ", "")) < 12 or reduced not in flat
