"""Breakpoints move with their lines when files are edited."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import hone.agents.debugger as package
from hone.agents.debugger.in_sandbox.hone_debug_files import kept_lines, replaced
from hone.agents.debugger.in_sandbox.hone_debug_lines import breakpoint_error, first_statement
from hone.agents.debugger.pdb import Breakpoint, listing, parse_breakpoints, shift_breakpoints

IN_SANDBOX = Path(package.__file__).parent / "in_sandbox"
NUMBERS = st.lists(st.integers(0, 60), unique=True, max_size=25)


def _at(line: int, **more: object) -> Breakpoint:
    return Breakpoint(path="/testbed/a.py", line=line, **more)  # type: ignore[arg-type]


def _shifted(old: str, new: str, line: int) -> int | None:
    """Where a breakpoint is after an edit; None: it is gone."""
    moved = shift_breakpoints(
        [_at(line, condition="x")], "/testbed/a.py", kept_lines(old.split("\n"), new.split("\n"))
    )
    assert all(each.condition == "x" for each in moved)
    return moved[0].line if moved else None


@given(NUMBERS, st.data())
def test_breakpoint_moves_with_its_line(names: list[int], data: st.DataObject):
    """Against a reference that finds the line again by its text, which is unique."""
    lines = [f"line {name}" for name in names]
    start = data.draw(st.integers(1, len(lines) + 2))
    end = data.draw(st.integers(start, len(lines) + 3))
    fresh = [f"new {n}" for n in range(data.draw(st.integers(0, 6)))]
    stay = sorted(data.draw(st.sets(st.sampled_from(range(start, end + 1)), max_size=3)))
    fresh += [lines[number - 1] for number in stay if number <= len(lines)]  # lines of old, in their order
    old = "".join(f"{line}\n" for line in lines)
    new = replaced(old, start, end, "\n".join(fresh))
    after = new.split("\n")
    for number, line in enumerate(lines, start=1):
        expected = after.index(line) + 1 if line in after else None
        assert _shifted(old, new, number) == expected


@given(NUMBERS, NUMBERS)
def test_breakpoint_survives_a_new_file_if_its_line_does(before: list[int], now: list[int]):
    old, new = ("\n".join(f"line {name}" for name in names) for names in (before, now))
    kept = 0
    for number, name in enumerate(before, start=1):
        found = _shifted(old, new, number)
        if found is not None:
            assert new.split("\n")[found - 1] == f"line {name}"
            kept += 1
    if set(before) & set(now):
        assert kept >= 1


def test_breakpoints_outside_an_edit_of_a_long_file_move():
    lines = [f"line {number}" for number in range(10_000)]
    old = "\n".join(lines)
    new = "\n".join([*lines[:5000], "one", "two", "three", *lines[5001:]])
    assert [_shifted(old, new, number) for number in (1, 5000, 5001, 5002, 10_000)] == [
        1, 5000, None, 5004, 10_002,
    ]  # fmt: skip


def test_breakpoints_of_other_files_stay():
    other = Breakpoint(path="/testbed/b.py", line=3)
    assert shift_breakpoints([other, _at(1)], "/testbed/a.py", []) == (other,)


def test_breakpoints_are_listed_with_their_options():
    marks = [_at(9, temporary=True), _at(4, condition="x > 1", enabled=False, ignore=2)]
    assert listing(marks, "/testbed") == (
        "line 4 in a.py (if x > 1, disabled, passed 2 times first)\nline 9 in a.py (once)"
    )
    assert listing([], "/testbed") == "No breakpoints are set."


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["path", "line", "condition", "ignore", "x"]), inner, max_size=5
            )
        ),
    )
)
def test_any_message_on_breakpoints_can_be_parsed(sent: object):
    for each in parse_breakpoints(sent):
        assert isinstance(each.path, str)
        assert isinstance(each.line, int)


def test_refused_breakpoint_names_another_line():
    source = '@cache\ndef f(\n    x,\n):\n    """Doc."""\n    return x\n\n\nclass A:\n    # why\n    y = 1\n'
    errors = {line: breakpoint_error(source, line) for line in range(1, 13)}
    assert {line for line, error in errors.items() if error is None} == {1, 3, 4, 5, 6, 11}
    assert "Try line 6 instead" in str(errors[2])
    assert "Try line 11 instead, the first statement inside it" in str(errors[9])
    assert "Line 10 is a comment. Try line 11 instead" in str(errors[10])
    assert first_statement(source, "f") == 6
    assert first_statement(source, "f", 1) == 6
    assert first_statement(source, "g") is None
    assert breakpoint_error("def f(:", 1) is None


def test_files_for_sandboxes_are_valid_python_3_8():
    for path in IN_SANDBOX.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))
