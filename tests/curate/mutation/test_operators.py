from pathlib import Path

import pytest

from tests.curate.mutation.offered import all_offered, dedent, offered

# operator, a line in a function (or a whole function), one of the lines that it becomes
LINES = [
    ("comparison_boundary", "return a < b", "return a <= b"),
    ("comparison_inverse", "return a not in b", "return a in b"),
    ("comparison_inverse", "return a is b", "return a is not b"),
    ("none_for_empty", "return (a is None) or b", "return (not a) or b"),
    ("boolean_operator", "return a and b", "return a or b"),
    ("dropped_operand", "return a and b", "return b"),
    ("negated_condition", "return a if a else b", "return a if not a else b"),
    ("negated_condition", "return a if not (a or b) else b", "return a if (a or b) else b"),
    ("dropped_not", "return not a", "return a"),
    ("swapped_branches", "return a if b else c", "return c if b else a"),
    ("arithmetic", "return a + b", "return a - b"),
    ("arithmetic", "a //= b", "a /= b"),
    ("dropped_term", "return (a + b) * c", "return (a) * c"),
    ("dropped_sign", "return a[-1]", "return a[1]"),
    ("off_by_one", "return a[1:n]", "return a[2:n]"),
    ("off_by_one", "return a[:n]", "return a[:n - 1]"),
    ("off_by_one", "return range(n + 1)", "return range(n)"),
    ("dropped_bound", "return a[1:n]", "return a[1:]"),
    ("wrong_constant", "return f(True)", "return f(False)"),
    ("wrong_constant", "return 10", "return 9"),
    ("wrong_text", "return 'Abc'", "return 'aBC'"),
    ("wrong_text", "return ''", "return ' '"),
    ("wrong_format", "return f'{a!r:>3}'", "return f'{a}'"),
    ("wrong_format", "return '%r of %s' % (a, b)", "return '%s of %s' % (a, b)"),
    ("swapped_arguments", "return f(a, b + 1)", "return f(b + 1, a)"),
    ("dropped_keyword", "return f(a, key=b)", "return f(a)"),
    ("dropped_keyword", "return f(key=b, other=c)", "return f(other=c)"),
    ("dropped_argument", "return f(a, b)", "return f(a)"),
    ("dropped_wrapper", "return sorted(a)", "return a"),
    ("dropped_wrapper", "return list(x for x in a)", "return (x for x in a)"),
    ("dropped_method", "return a.strip()", "return a"),
    ("dropped_method", "return a.copy()", "return a"),
    ("wrong_method", "a.append(b)", "a.extend(b)"),
    ("wrong_function", "return min(a)", "return max(a)"),
    ("dropped_copy", "return a[:]", "return a"),
    ("negated_return", "return a == b", "return not (a == b)"),
    ("wrong_return", "return a", "return None"),
    ("wrong_variable", "return f(a)", "return f(n)"),
    ("swapped_targets", "a, b = c", "b, a = c"),
    ("removed_condition", "if a: b()", "if True: b()"),
    ("wrong_exception", "raise ValueError('no')", "raise TypeError('no')"),
    ("removed_raise", "raise ValueError('no')", "pass"),
    ("yield_whole", "yield from a", "yield a"),
]

BLOCKS = [
    (
        "swapped_branches",
        """
        def f(a):
            if a:
                return 1  # one
            else:
                return 2
        """,
        """
        def f(a):
            if a:
                return 2  # one
            else:
                return 1
        """,
    ),
    (
        "dropped_branch",
        """
        def f(a):
            if a == 1:
                return 1
            # the next one
            elif a == 2:
                return 2
            else:
                return 3
        """,
        """
        def f(a):
            if a == 1:
                return 1
            # the next one
            else:
                return 3
        """,
    ),
    (
        "removed_guard",
        """
        def f(a):
            if not a:
                return None
            return a[0]
        """,
        """
        def f(a):
            return a[0]
        """,
    ),
    (
        "removed_assignment",
        """
        def f(a):
            b = 1
            b = a + b
            return b
        """,
        """
        def f(a):
            b = 1
            return b
        """,
    ),
    (
        "removed_call",
        """
        def f(a):
            for b in a:
                b.close()
        """,
        """
        def f(a):
            for b in a:
                pass
        """,
    ),
    (
        "loop_control",
        """
        def f(a):
            for b in a:
                if b:
                    break
        """,
        """
        def f(a):
            for b in a:
                if b:
                    continue
        """,
    ),
    (
        "statement_into_loop",
        """
        def f(a):
            for b in a:
                b()
            return a
        """,
        """
        def f(a):
            for b in a:
                b()
                return a
        """,
    ),
    (
        "stopped_early",
        """
        def f(a):
            for b in a:
                yield b
        """,
        """
        def f(a):
            for b in a:
                yield b
                break
        """,
    ),
    (
        "default_value",
        """
        def f(a, strict=False):
            return strict
        """,
        """
        def f(a, strict=True):
            return strict
        """,
    ),
    (
        "mutable_default",
        """
        def f(a, b=None):
            if b is None:
                b = []
            b.append(a)
            return b
        """,
        """
        def f(a, b=[]):
            b.append(a)
            return b
        """,
    ),
    (
        "removed_initialisation",
        """
        class C(B):
            def __init__(self, a):
                super().__init__()
                self.a = a
        """,
        """
        class C(B):
            def __init__(self, a):
                super().__init__()
        """,
    ),
    (
        "dropped_super",
        """
        class C(B):
            def __init__(self, a):
                super().__init__()
                self.a = a
        """,
        """
        class C(B):
            def __init__(self, a):
                self.a = a
        """,
    ),
    (
        "wrong_attribute",
        """
        class C:
            def __init__(self, a, b):
                self.a = a
                self.b = b
            def total(self):
                return self.a
        """,
        """
        class C:
            def __init__(self, a, b):
                self.a = a
                self.b = b
            def total(self):
                return self.b
        """,
    ),
    (
        "widened_handler",
        """
        def f(a):
            try:
                return a()
            except KeyError:
                return None
        """,
        """
        def f(a):
            try:
                return a()
            except Exception:
                return None
        """,
    ),
    (
        "narrowed_handler",
        """
        def f(a):
            try:
                return a()
            except (KeyError, TypeError):
                return None
        """,
        """
        def f(a):
            try:
                return a()
            except (KeyError,):
                return None
        """,
    ),
    (
        "swallowed_error",
        """
        def f(a):
            try:
                return a()
            except KeyError:
                return None
        """,
        """
        def f(a):
            try:
                return a()
            except KeyError:
                pass
        """,
    ),
]


@pytest.mark.parametrize(("operator", "line", "becomes"), LINES)
def test_operator_changes_a_line(operator, line, becomes):
    text = f"def g(a, b, c, n, f):\n    {line}\n"
    assert f"def g(a, b, c, n, f):\n    {becomes}\n" in offered(operator, text)


@pytest.mark.parametrize(("operator", "block", "becomes"), BLOCKS)
def test_operator_changes_a_block(operator, block, becomes):
    assert dedent(becomes) in offered(operator, dedent(block))


def test_every_operator_has_an_example():
    page = (Path(__file__).parents[3] / "docs" / "15-mutation.md").read_text()
    rows = [
        line.split("|")[2] for line in page.partition("## Operators")[2].splitlines() if line.count("|") == 3
    ]
    documented = {name.strip() for row in rows[2:] for name in row.split(",")}
    assert {case[0] for case in (*LINES, *BLOCKS)} == documented
    assert f"{len(documented)} operators make" in page


LEFT_ALONE = '''
"""A module, with 1 + 1."""
from typing import TYPE_CHECKING, overload
import logging
from dataclasses import dataclass as frozen

if TYPE_CHECKING:
    from x import y
__version__ = "1.2.3"
log = logging.getLogger("name")


@decorate(1, key=True)
def f(a: "Literal[1, True]", b: list[int]) -> "None | int":
    """Not a < b."""
    log.debug("x < %d", 1 + 1)
    assert 1 < 2, "no"
    c: "Literal['x']"
    global g
    raise Odd("a message", 1 + 1)


class C:
    def __repr__(self):
        return "C(" + str(1) + ")"


@overload
def h(a: int) -> int:
    return 1 + 1


if __name__ == "__main__":
    f(1, 2)
'''


def test_annotations_docstrings_and_scripts_are_not_mutated():
    assert {mutation.operator for mutation, _ in all_offered(LEFT_ALONE)} == {"removed_raise"}


MIXED = """
# Grüße — ünïcode before the code shifts bytes against characters
LIMIT = 10


class Parser( Base ):
    name = 'x'   # two blanks
    def parse(self, text, *, strict = False):
        "A docstring."
        if strict and text.strip()  ==  'ä' :    return None
        for i, part in enumerate( text.split(',') ):
            try: self.parts[i] = int( part )
            except (ValueError, TypeError) as e:
                raise KeyError(part) from e
        else:
            self.count += len( self.parts [1:] )
        return [ p for p in self.parts
                 if p > 0 ] # all
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_bytes_outside_of_a_mutation_stay(newline):
    text = MIXED.replace("\n", newline)
    module_of = dict(all_offered(text))
    assert len(module_of) > 40
    for mutation, after in module_of.items():
        first = min(edit.start for edit in mutation.change)
        rest = len(text.encode()) - max(edit.end for edit in mutation.change)
        assert after.encode()[:first] == text.encode()[:first]
        assert after.encode()[len(after.encode()) - rest :] == text.encode()[len(text.encode()) - rest :]
        assert "\n" not in after.replace("\r\n", "") or newline == "\n"


def test_mutation_names_its_function_and_line():
    found = {
        (m.operator, m.function, m.line) for m, _ in all_offered(MIXED) if m.operator == "arithmetic"
    } | {
        (m.operator, m.function, m.line)
        for m, _ in all_offered(MIXED)
        if m.function in ("LIMIT", "Parser.name")
    }
    assert ("arithmetic", "Parser.parse", 16) in found
    assert ("wrong_constant", "LIMIT", 3) in found
    assert ("wrong_text", "Parser.name", 7) in found
