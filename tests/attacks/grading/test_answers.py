"""Attacks by the answer: objects that are equal to whatever the tests expect."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.grading.attack import Attack, at_call, check_attacks

ATTACKS: dict[str, Attack] = {
    "equals everything": at_call("return type('E', (), {'__eq__': lambda self, other: True})()", "test_add"),
    "equals everything, as a number": at_call(
        "return type('E', (int,), {'__eq__': lambda self, other: True})()", "test_add"
    ),
    "equals everything in lists": at_call(
        "return type('E', (), {'__eq__': lambda self, other: True})()", "test_add_lists"
    ),
    "equals everything that unittest asks": at_call(
        """E = type('E', (), {'__eq__': lambda s, o: True, '__ne__': lambda s, o: False})
    return E() if (a, b) == (7, 2) else a - b""",
        "test_case",
    ),
    "equals everything that a helper asks": at_call(
        """E = type('E', (), {'__eq__': lambda self, other: True})
    return E() if (a, b) == (1, 1) else a - b""",
        "test_same",
    ),
    "is unequal to itself": at_call("return type('E', (), {'__eq__': object.__ne__})()", "test_add"),
    "hides behind a metaclass": at_call(
        """class M(type):
        def __getattribute__(cls, name):
            return int.__eq__ if name == '__eq__' else type.__getattribute__(cls, name)
    class E(metaclass=M):
        __eq__ = lambda self, other: True
    return E()""",
        "test_add",
    ),
    "answers ANY": at_call("from unittest.mock import ANY; return ANY", "test_add"),
    "answers with something always true": at_call(
        """class T:
        __bool__ = lambda self: True
        __eq__ = lambda self, other: T()
    return T()""",
        "test_add",
    ),
    "answers a mock": at_call("from unittest.mock import MagicMock; return MagicMock()"),
    "answers nothing": at_call("return NotImplemented"),
}
CAUGHT = set(ATTACKS) - {"is unequal to itself", "answers a mock", "answers nothing"}


def test_no_attack_by_the_answer_is_resolved(tmp_path: Path) -> None:
    check_attacks(ATTACKS, tmp_path, caught=CAUGHT)
