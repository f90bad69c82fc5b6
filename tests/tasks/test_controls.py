"""Edits of test functions that become controls."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.controls import apply
from hone.tasks.controls import EDITS, propose

HEAD = "import pytest\nimport unittest\n\n"


def edits(body: str, *, head: str = HEAD) -> list[tuple[str, str]]:
    text = head + "def test_it():\n" + textwrap.indent(body, "    ")
    (function,) = propose({"t.py": text}, frozenset({"t.py::test_it"}))
    for edit in function.edits:
        ast.parse(apply([function.control(edit, function.tests)], "t.py", text))
    return [(edit.old, edit.new) for edit in function.edits]


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        ("assert f(1) == 3", "3", "4"),
        ("assert f(1) == -3", "-3", "-4"),
        ("assert 3 == f(1)", "3", "4"),
        ("assert f(1) == 0.5", "0.5", "1.5"),
        ("assert f(1) == True", "True", "False"),
        ("assert f(1) == 'abz'", "'abz'", "'aba'"),
        ("assert f(1) == 'é-'", "'é-'", "'é-~'"),
        ("assert f(1) == b'x'", "b'x'", "b'y'"),
        ("assert f(1) == [1, {'a': 'b'}]", "'b'", "'c'"),
        ("assert f(1) == []", "[]", "[0]"),
        ("assert f(1) == {}", "{}", "{0: 0}"),
        ("assert f(1) == ()", "()", "(0,)"),
        ("assert f(1) == pytest.approx(2.5, rel=1e-3)", "2.5", "3.5"),
        ("assert f(1) == expected", "expected", "[expected]"),
        ("assert 'abc' in f(1)", "'abc'", "'abd'"),
        ("assert f(1) is None", "f(1) is None", "not (f(1) is None)"),
        ("assert f(1)", "f(1)", "not (f(1))"),
        ("assert ok and f(1) == 3", "3", "4"),
        ("assert 1 < f(1) <= 3", "3", "4"),
        ("assert f(1).startswith('ab')", "'ab'", "'ac'"),
        ("assert f(1) == f'{x}'", "f'{x}'", "[f'{x}']"),
        ("with pytest.raises(ValueError):\n    f(1)", "ValueError", "IndexError"),
        ("with pytest.raises((ValueError, KeyError)):\n    f(1)", "(ValueError, KeyError)", "IndexError"),
        ("with pytest.warns(UserWarning, match='x'):\n    f(1)", "UserWarning", "RuntimeWarning"),
        ("pytest.raises(ValueError, f, 1)", "ValueError", "IndexError"),
        ("with self.assertRaises(ValueError):\n    f(1)", "ValueError", "IndexError"),
        ("self.assertEqual(f(1), 3)", "3", "4"),
        ("self.assertEqual(f(1), other)", "other", "[other]"),
        ("self.assertTrue(f(1))", "assertTrue", "assertFalse"),
        ("self.assertIn(x, f(1))", "assertIn", "assertNotIn"),
        ("self.assertRaisesRegex(ValueError, 'x', f)", "ValueError", "IndexError"),
        ("np.testing.assert_allclose(f(1), 2.0)", "2.0", "3.0"),
        ("mock.assert_called_once_with(3)", "3", "4"),
        ("mock.assert_called_once()", "assert_called_once", "assert_not_called"),
        ("check(f(1), 'x')", "'x'", "'y'"),
        ("f(1)", "1", "2"),
        ("f(x)", "", "\n    assert not 1"),
    ],
)  # fmt: skip
def test_one_expectation_is_changed(body: str, old: str, new: str) -> None:
    assert edits(body)[0] == (old, new)


def test_every_expectation_of_a_test_may_be_changed() -> None:
    assert [new for _, new in edits("assert f(1) == 10\nassert f(2) == 20\nassert f(3) == 30")][:3] == [
        "31",
        "11",
        "21",
    ]


def test_exception_may_become_either_of_two_others() -> None:
    found = edits("with pytest.raises(LookupError):\n    f(1)")[:2]
    assert [old for old, _ in found] == ["LookupError", "LookupError"]
    assert len({new for _, new in found} - {"LookupError"}) == 2


def test_message_that_an_exception_must_match_may_be_changed() -> None:
    found = edits("with pytest.raises(ValueError, match='x', check='y'):\n    f(1)")
    assert ("'x'", "'y'") in found
    assert ("'y'", "'z'") not in found


def test_function_on_one_line_gets_a_false_assertion_on_it() -> None:
    text = "def test_it(): f(x)\n"
    (function,) = propose({"t.py": text}, frozenset({"t.py::test_it"}))
    control = function.control(function.edits[-1], function.tests)
    assert apply([control], "t.py", text) == "def test_it(): f(x); assert not 1\n"


def test_tests_of_one_function_share_its_edits() -> None:
    text = textwrap.dedent("""
        class Base:
            def test_it(self, x):
                assert f(x) == 1

        class TestA(Base):
            pass

        class TestB(Base):
            class TestInner(Base):
                async def test_it(self):
                    assert f(2) == 2
    """)
    names = {"TestA::test_it[a]", "TestA::test_it[b]", "TestB::test_it", "TestB::TestInner::test_it"}
    found = propose({"t.py": text}, frozenset(f"t.py::{name}" for name in names))
    assert sorted(len(function.tests) for function in found) == [1, 3]


@pytest.mark.parametrize("text", ["def test_it(:\n", "x = '\udce9'\n", "def test_other(): pass\n", ""])
def test_files_without_the_test_have_no_edits(text: str) -> None:
    assert propose({"t.py": text}, frozenset({"t.py::test_it", "u.py::test_it", "doc.md::doc.md"})) == []


def test_bare_names_are_found_in_any_file() -> None:
    (function,) = propose({"t.py": "def test_it():\n    assert f() == 1\n"}, frozenset({"test_it"}))
    assert function.tests == ("test_it",)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=8,
)


@given(value=VALUES)
def test_changed_constants_are_unequal_and_of_the_same_shape(value: object) -> None:
    text = f"# é\ndef test_it():\n    assert f() == {value!r}\n"
    (function,) = propose({"t.py": text}, frozenset({"t.py::test_it"}))
    assert 1 <= len(function.edits) <= EDITS
    for edit in function.edits:
        changed = apply([function.control(edit, function.tests)], "t.py", text)
        space = {"f": lambda: value, "inf": float("inf")}
        exec(compile(changed, "t.py", "exec"), space)
        with pytest.raises(AssertionError):
            space["test_it"]()  # pyright: ignore[reportCallIssue]


def test_text_is_parsed_again_when_a_finaliser_parsed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, calls = ast.parse, []

    def once(data: bytes) -> ast.Module:
        calls.append(data)
        if len(calls) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=180, after=231)")
        return parse(data)

    monkeypatch.setattr(ast, "parse", once)
    assert propose({"t.py": "def test_it():\n    assert f() == 1\n"}, frozenset({"t.py::test_it"}))
