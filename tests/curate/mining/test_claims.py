import ast

import pytest

from hone.curate.mining.assertions import plain_statements
from hone.curate.mining.claims import find_claims, join

TESTS = '''
from __future__ import annotations

import os
from unittest import TestCase

import pytest

import package
from package import take
from package.errors import Wrong

LIMIT = 3
CASES = [(1, "a"), (2, "b")]


def check(value):
    assert value == LIMIT


@pytest.fixture
def numbers(tmp_path):
    return [1, 2, LIMIT]


def test_slices():
    """Not shown."""
    other = os.getpid()
    items = [1, 2]
    items.append(3)
    first = take(1, items)
    assert first == [1]
    first = take(2, items)
    assert first == [1, 2]


def test_loop():
    for n in range(2):
        assert take(n, "ab") == list("ab")[:n]


def test_errors():
    with pytest.raises(Wrong) as caught:
        take(-1, [])
    assert "negative" in str(caught.value)


@pytest.mark.parametrize(("n", "text"), CASES)
@pytest.mark.parametrize("kind", [pytest.param(list, id="l")])
def test_sets(n, text, kind):
    assert take(*[n, text], kind) == text


@pytest.mark.parametrize("n", range(3))
def test_computed_sets(n):
    assert take(n, []) == []


def test_fixture(numbers):
    assert take(2, numbers) == [1, 2]


def test_unknown_fixture(nothing):
    assert take(2, nothing) == [1, 2]


def test_helper():
    check(take(3))


def test_text():
    text = """one
    two"""
    assert take(1, text) == "o"


class TestOld(TestCase):
    size = 2

    def setUp(self):
        self.items = [1, self.size]

    def test_equal(self):
        self.assertEqual(take(1, self.items), [1])
        self.assertEqual("a", take(1, "ab"))
        self.assertTrue(take(1, "ab"), "why")
        self.assertIsNone(take(0, "ab"))
        self.assertNotIn("b", take(1, "ab"))
        self.assertIsInstance(take(1, "ab"), str)

    def test_raises(self):
        self.assertRaises(Wrong, take, -1, n=[])
        self.assertRaisesRegex(Wrong, "neg", lambda: take(-1, []))
        with self.assertRaises(Wrong) as caught:
            take(-1, [])
        self.assertIn("negative", str(caught.exception))

    def test_own_helper(self):
        self.assertEqual(self.help(), 1)

    def test_subtests(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(take(n, []), [])
'''


def codes(name: str, fixtures=None) -> list[str]:
    test = f"tests/t.py::{name}"
    return [claim.code for claim in find_claims({"tests/t.py": TESTS}, [test], fixtures or {})[test]]


def test_claim_has_the_statements_that_its_assertion_needs():
    before = "from package import take\n\nitems = [1, 2]\nitems.append(3)\n"
    assert codes("test_slices") == [
        f"{before}first = take(1, items)\nassert first == [1]",
        f"{before}first = take(2, items)\nassert first == [1, 2]",
    ]


def test_claims_of_a_test_are_joined_in_its_order():
    test = "tests/t.py::test_slices"
    claims = find_claims({"tests/t.py": TESTS}, [test], {})[test]
    joined = join(claims[::-1])
    assert joined.code.splitlines()[2:] == [
        "items = [1, 2]", "items.append(3)", "first = take(1, items)", "assert first == [1]",
        "first = take(2, items)", "assert first == [1, 2]",
    ]  # fmt: skip
    assert len(joined.places) == 2


def test_joined_claims_import_from_each_module_once():
    text = "import re\nfrom package import Any, take, In\n\ndef test_a():\n"
    text += "    assert In(re)\n    assert take(Any)\n"
    claims = find_claims({"t.py": text}, ["t.py::test_a"], {})["t.py::test_a"]
    assert [claim.imports for claim in claims] == [
        ("import re", "from package import In"),
        ("from package import Any, take",),
    ]
    assert join(claims).imports == ("import re", "from package import In, Any, take")
    assert join(claims[1:]) == claims[1]


def test_loop_with_an_assertion_is_one_claim():
    assert codes("test_loop") == [
        'from package import take\n\nfor n in range(2):\n    assert take(n, "ab") == list("ab")[:n]'
    ]


def test_error_that_a_later_claim_reads_is_raised_again():
    raised = "import pytest\nfrom package import take\nfrom package.errors import Wrong\n\n"
    raised += "with pytest.raises(Wrong) as caught:\n    take(-1, [])"
    assert codes("test_errors") == [raised, f'{raised}\nassert "negative" in str(caught.value)']


def test_values_take_the_place_of_parameters():
    texts = [(1, "a"), (2, "b")]
    assert codes("test_sets") == [
        f"from package import take\n\nassert take({n}, {text!r}, list) == {text!r}" for n, text in texts
    ]


@pytest.mark.parametrize(
    "name", ["test_computed_sets", "test_unknown_fixture", "TestOld::test_own_helper", "gone"]
)
def test_test_that_needs_its_class_or_project_has_no_claims(name):
    assert codes(name) == []


def test_fixtures_are_shown_with_a_test_function():
    assert codes("test_fixture") == [
        "import pytest\nfrom package import take\n\nLIMIT = 3\n\n"
        "@pytest.fixture\ndef numbers(tmp_path):\n    return [1, 2, LIMIT]\n\n"
        "def test_example(numbers):\n    assert take(2, numbers) == [1, 2]"
    ]


def test_fixtures_of_conftest_are_found_above_the_file():
    texts = "import pytest\nfrom package import more\n\n@pytest.fixture\ndef nothing():\n    return more()\n"
    (code,) = codes("test_unknown_fixture", {"tests/conftest.py": texts})
    assert "from package import more\n" in code
    assert "def nothing():\n    return more()\n\ndef test_example(nothing):\n" in code
    assert codes("test_unknown_fixture", {"other/conftest.py": texts}) == []


def test_helper_that_asserts_is_called():
    (code,) = codes("test_helper")
    helper = "LIMIT = 3\n\ndef check(value):\n    assert value == LIMIT"
    assert code == f"from package import take\n\n{helper}\n\ncheck(take(3))"


def test_text_over_lines_keeps_its_lines():
    (code,) = codes("test_text")
    assert "text = 'one\\n    two'\n" in code


def test_assertions_of_unittest_become_plain():
    lines = [code.splitlines()[-1] for code in codes("TestOld::test_equal")]
    assert lines == [
        "assert take(1, items) == [1]", "assert take(1, 'ab') == 'a'", "assert take(1, 'ab')",
        "assert take(0, 'ab') is None", "assert 'b' not in take(1, 'ab')",
        "assert isinstance(take(1, 'ab'), str)",
    ]  # fmt: skip
    assert codes("TestOld::test_equal")[0].splitlines()[2:4] == ["size = 2", "items = [1, size]"]


def test_expected_errors_of_unittest_become_those_of_pytest():
    found = codes("TestOld::test_raises")
    assert [code.partition("\n\n")[2] for code in found[:3]] == [
        "with pytest.raises(Wrong):\n    take(-1, n=[])",
        "with pytest.raises(Wrong, match='neg'):\n    take(-1, [])",
        "with pytest.raises(Wrong) as caught:\n    take(-1, [])",
    ]
    assert found[3].endswith("    take(-1, [])\nassert 'negative' in str(caught.value)")


def test_subtests_are_plain_loops():
    (code,) = codes("TestOld::test_subtests")
    assert code.endswith("for n in (1, 2):\n    assert take(n, []) == []")


def test_file_of_another_python_has_no_claims():
    assert find_claims({"t.py": "print 1\n\ndef test_a():\n    assert 1\n"}, ["t.py::test_a"], {}) == {}


def test_class_inside_of_a_test_keeps_its_self():
    source = (
        "class TestIt(TestCase):\n    def test_it(self):\n        class Box:\n"
        "            def __init__(self, size):\n                self.size = size\n"
        "        self.assertEqual(Box(3).size, 4)\n"
    )
    (statement, check) = plain_statements(ast.parse(source).body[0].body[0].body)
    assert "self.size = size" in ast.unparse(statement)
    assert ast.unparse(check) == "assert Box(3).size == 4"
    (claim,) = find_claims({"t.py": source}, ["t.py::TestIt::test_it"], {})["t.py::TestIt::test_it"]
    assert "self.size = size" in claim.code
