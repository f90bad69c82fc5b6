import pytest

from hone.curate.mining.interface import describe, find_expected
from hone.curate.mining.refusal import CommitRejected, Reason

SOURCE = """
class Price:
    def in_euros(self, *, rounding=None): ...
    def _rate(self): ...

def parse_price(text):
    helper_value = 1
    raise ValueError("This is no price at all")
"""
KNOWN = {"class", "Price", "def", "self", "raise", "ValueError", "no", "at", "text"}
PATCH = '+    raise ValueError("This is no price at all")\n'


def of(tests: str, *names: str, statement: str = "It fails."):
    ids = [f"tests/test_it.py::{name}" for name in names]
    return find_expected(
        {"tests/test_it.py": tests},
        ids,
        sources=[SOURCE],
        known=KNOWN,
        gold_patch=PATCH,
        statement=statement,
    )


def test_new_names_are_listed_as_the_tests_use_them():
    found = of(
        "from shop import parse_price\n\n"
        "def test_a():\n    Price().in_euros(rounding=2)\n    parse_price('x')\n",
        "test_a",
    )
    assert set(found.names) == {"shop.parse_price", "in_euros", "in_euros(rounding=...)", "parse_price"}
    assert "- `shop.parse_price`" in describe(found)


def test_names_of_other_tests_are_not_listed():
    tests = (
        "class TestIt:\n    def test_a(self):\n        Price()\n    def test_b(self):\n        x.in_euros()\n"
    )
    assert of(tests, "TestIt::test_a").names == ()


def test_known_and_local_names_are_not_listed():
    tests = "def test_a(rounding):\n    helper_value = rounding\n    parse_price(helper_value)\n"
    assert of(tests, "test_a[1-2]", statement="parse_price fails.").names == ()


def test_new_messages_are_listed():
    tests = "def test_a():\n    with raises(ValueError, match='This is no price at all'):\n        Price()\n"
    found = of(tests, "test_a")
    assert found.messages == ("This is no price at all",)
    assert describe(found).endswith("Expected messages:\n\n- This is no price at all")


def test_pattern_of_an_error_message_is_listed():
    tests = "def test_a():\n    with raises(ValueError, match='no price: 3'):\n        Price()\n"
    assert of(tests, "test_a").messages == ("no price: 3",)


def test_new_private_name_makes_the_commit_unfit():
    with pytest.raises(CommitRejected) as caught:
        of("def test_a():\n    Price()._rate()\n", "test_a")
    assert (caught.value.reason, caught.value.detail) == (Reason.PRIVATE_NAMES, "_rate")


def test_nothing_new_needs_no_section():
    assert describe(of("def test_a():\n    Price()\n", "test_a")) == ""
