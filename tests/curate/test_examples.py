import pytest

from hone.curate.examples import find_example

TESTS = """
import pytest, os
from itertools import count
from package import take, Parser
import package.errors as errors
from .helpers import helper

LIMIT = 3


def small(x):
    return x < LIMIT


def test_take_nth():
    assert take(0, "AB") == []
    items = [1, 2, helper(3)]
    assert list(take(2, items)) == [1, 2]
    assert not take(0, filter(small, items))


def test_errors():
    with pytest.raises(ValueError):
        take(-1, [])


class TestParser:
    def test_reads_numbers(self):
        '''Numbers are read.'''
        parser = Parser(strict=True)
        parser.feed("1 2")
        assert parser.result() == [1, 2]

    @pytest.mark.parametrize("text", ["a"])
    def test_given(self, text):
        assert errors.find(text) is None

"""


def example(text, test="test_x", source=TESTS):
    numbers = [n for n, line in enumerate(source.splitlines(), 1) if line.strip() == text]
    return find_example(source, f"t.py::{test}", numbers[0], {"package"})


def test_example_holds_imports_helpers_and_earlier_statements():
    found = example("assert not take(0, filter(small, items))")
    assert found.code == (
        "from package import take\nfrom .helpers import helper\n\n"
        "LIMIT = 3\n\n"
        "def small(x):\n    return x < LIMIT\n\n"
        'assert take(0, "AB") == []\n'
        "items = [1, 2, helper(3)]\n"
        "assert list(take(2, items)) == [1, 2]\n"
        "assert not take(0, filter(small, items))"
    )
    assert (found.subject, found.parameters) == ("take", "")


def test_statements_after_the_failure_are_left_out():
    assert example('assert take(0, "AB") == []').code.endswith('\n\nassert take(0, "AB") == []')


def test_expected_error_is_shown_with_its_block():
    found = example("take(-1, [])")
    assert found.code == (
        "import pytest\nfrom package import take\n\nwith pytest.raises(ValueError):\n    take(-1, [])"
    )
    assert found.subject == "take"


def test_methods_are_dedented():
    assert example('parser.feed("1 2")').code == (
        'from package import Parser\n\nparser = Parser(strict=True)\nparser.feed("1 2")'
    )
    assert example("assert parser.result() == [1, 2]").subject == "Parser"


def test_parameters_of_the_test_are_named():
    found = example("assert errors.find(text) is None", test="TestParser::test_given[a-1]")
    assert (found.subject, found.parameters) == ("errors.find", "a-1")
    assert found.code == "import package.errors as errors\n\nassert errors.find(text) is None"


def test_star_import_is_always_shown():
    source = "from package.seqs import *\n\ndef test_first():\n    n = 2\n    assert first(n) == 1\n"
    assert example("assert first(n) == 1", source=source).code == (
        "from package.seqs import *\n\nn = 2\nassert first(n) == 1"
    )


@pytest.mark.parametrize(("source", "line"), [("x = 1\n", 1), ("def test(:\n", 1), ("", 3)])
def test_line_outside_of_a_function_has_no_example(source, line):
    assert find_example(source, "t.py::test", line, {"package"}) is None


CASE = """
import unittest
from package import take


class TakeTest(unittest.TestCase):
    def setUp(self):
        self.items = [1]

    def test_take(self):
        found = take(1, "AB")
        self.assertEqual(found, ["A"])
        with self.assertRaises(ValueError):
            take(-1, [])

    def test_items(self):
        self.assertEqual(take(1, self.items), [1])
"""


def test_assertions_of_unittest_become_plain_ones():
    found = example("with self.assertRaises(ValueError):", source=CASE)
    assert found.code == (
        "import pytest\nfrom package import take\n\n"
        "found = take(1, 'AB')\nassert found == ['A']\nwith pytest.raises(ValueError):\n    take(-1, [])"
    )
    assert found.subject == "take"


def test_test_that_needs_its_class_keeps_its_text():
    found = example("self.assertEqual(take(1, self.items), [1])", source=CASE)
    assert found.code.endswith("self.assertEqual(take(1, self.items), [1])")
