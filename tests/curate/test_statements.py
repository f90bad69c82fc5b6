import pytest

from hone.curate.statements import Failure, changed_lines, find_leak, parse_messages, write_statement

TESTS = """from package import take, Parser

def test_take_nth():
    assert take(2, [1]) == [1]

def test_parse():
    assert Parser().parse("a") is None

def test_own():
    assert sorted([]) == 1

@parametrize("n", [1])
def test_more(n):
    take(n, n)
"""


def failure(test, line, message):
    return Failure(test=f"t.py::{test}", line=line, message=message)


VALUES = failure("test_take_nth", 4, "assert [] == [1]")
RAISED = failure("test_parse", 7, "KeyError: 'a'")
OWN = failure("test_own", 10, "assert [] == 1")
MORE = failure("test_more[1]", 14, "")


def statement(*groups):
    return write_statement(groups, {"t.py": TESTS}, ["src/package/a.py"])


def test_statement_shows_the_call_and_the_error():
    assert statement([VALUES]) == (
        "`take` gives a wrong result (take nth)\n\n"
        "```python\nfrom package import take\n\nassert take(2, [1]) == [1]\n```\n\n"
        "The last statement fails:\n\n```\nassert [] == [1]\n```\n"
    )


def test_title_names_the_error_that_is_raised():
    assert statement([RAISED]).splitlines()[0] == "`Parser` raises KeyError"
    assert statement([OWN]).splitlines()[0] == "own gives a wrong result"


def test_clearest_failure_is_chosen():
    assert "take(2, [1])" in statement([OWN, MORE, VALUES])


def test_parameters_of_the_test_are_shown():
    text = statement([MORE])
    assert "With the parameters `1`, the last statement fails:\n\n```\nAssertionError\n```" in text


def test_bug_in_two_places_shows_a_failure_of_each():
    text = statement([VALUES], [RAISED])
    assert text.splitlines()[0] == "`take` gives a wrong result (take nth) and `Parser` raises KeyError"
    assert "take(2, [1])" in text
    assert 'parse("a")' in text


@pytest.mark.parametrize("groups", [([VALUES], []), ([VALUES], [VALUES]), ([failure("test_x", 1, "E")],)])
def test_group_without_an_example_of_its_own_has_no_statement(groups):
    assert statement(*groups) is None


LOG = """
=== ERRORS ===
___ ERROR collecting test_example_0.py ___
AssertionError while it was imported: assert 2 == 3
=== FAILURES ===
___ test_example ___
test_example_1.py:3: in test_example
    take(1)
package/a.py:2: in take
    raise KeyError(1)
E   KeyError: 1
=== short test summary info ===
"""


def test_errors_are_told_by_file():
    files = ["test_example_0.py", "test_example_1.py", "test_example_2.py"]
    assert parse_messages(LOG, files) == {files[0]: "AssertionError: assert 2 == 3", files[1]: "KeyError: 1"}
    assert parse_messages(LOG, files[2:]) == {}


PATCH = """--- a/package/module.py
+++ b/package/module.py
@@ -1,3 +1,3 @@
 context that may be told
-    return  items[1:n]
+    return items[:n]
     x = 1
-    y = 2
"""


def test_changed_line_is_a_leak_and_context_is_not():
    lines = changed_lines(PATCH, "+-")
    assert find_leak("I think it should\nreturn items[:n]\n", lines) == "return items[:n]"
    assert find_leak("It does\n`return items[1:n]`", lines) == "return items[1:n]"
    assert find_leak("context that may be told, y = 2, a/package/module.py", lines) is None
    assert changed_lines(PATCH) == {"return items[:n]"}
