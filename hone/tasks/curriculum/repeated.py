"""Families whose bug is the same mistake on three lines of a function, so that its fix needs three edits."""

from __future__ import annotations

from hone.tasks.curriculum.arithmetic import COMPARISONS, other_digits
from hone.tasks.curriculum.bug import Bug, Draw, Shape
from hone.tasks.curriculum.objects import METHODS, PLACES

WHERE = "in three places"

# Bodies with three values, each of which a result shows.
BRANCHES = """\
    if {above}:
        return {one}
    if {below}:
        return {two}
    return {three}"""
LIST = """\
    total = [{one}]
    total.append({two})
    total.append({three})
    return total"""
LOCAL_NAMES = """\
    total = {one}
    result = {two}
    return [total, result, {three}]"""


def _code(signature: str, body: str, values: tuple[str, str, str], condition: str = "") -> str:
    """Return the source of a function; `condition` is of BRANCHES and has ? in the place of > and <."""
    above, below = condition.replace("?", ">"), condition.replace("?", "<")
    one, two, three = values
    return f"def {signature}:\n" + body.format(one=one, two=two, three=three, above=above, below=below)


NUMBERS = ((7, 3), (2, 9), (4, 4), (10, 6), (3, 8))
VERBS = {"+": ("adds", "add"), "-": ("subtracts", "subtract"), "*": ("multiplies", "multiply")}


def repeated_operator(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    k, n = draw.digits(2)
    bad, right = draw.pick(("-", "+"), ("+", "-"), ("+", "*"), ("-", "*"))
    values = draw.pick((f"{a}@{b}", f"{b}@{k}", f"{a}@{n}"), (f"{b}@{a}", f"{a}@{k}", f"{b}@{n}"))
    code = _code(f"{f}({a}, {b})", draw.pick(BRANCHES, LIST, LOCAL_NAMES), values, f"{a} ? {b}")
    return Bug(
        shape=Shape(code, NUMBERS),
        bad=f" {bad} ",
        right=f" {right} ",
        wrong=[f" {op} " for op in "+-*%" if op not in (bad, right)],
        actual=f"it {VERBS[bad][0]} {WHERE}",
        expected=f"it should {VERBS[right][1]}",
    )


def repeated_comparison(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    k, n = draw.digits(2)
    bad, right = draw.pick(*[(x, y) for x in COMPARISONS for y in COMPARISONS if x != y])
    values = draw.pick((f"{a}@{b}", f"{a}@{k}", f"{b}@{n}"), (f"{b}@{a}", f"{b}@{k}", f"{a}@{n}"))
    code = _code(f"{f}({a}, {b})", draw.pick(LIST, LOCAL_NAMES), values)
    near = [(x + step, y - step) for x, y in ((k, n), (n, k)) for step in (-1, 0, 1)]
    return Bug(
        shape=Shape(code, [*near, (5, 5), (1, 12), (12, 1)]),
        bad=f" {bad} ",
        right=f" {right} ",
        wrong=[f" {op} " for op in (*COMPARISONS, "==") if op not in (bad, right)],
        actual=f"it tests {COMPARISONS[bad]} {WHERE}",
        expected=f"it should test {COMPARISONS[right]}",
    )


def repeated_constant(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    bad, right = draw.digits(2)
    values = draw.pick((f"{a} * @", f"{b} + @", f"{a} - @"), (f"{a} + @", f"{b} - @", f"{b} * @"))
    code = _code(f"{f}({a}, {b})", draw.pick(BRANCHES, LIST, LOCAL_NAMES), values, f"{a} ? {b}")
    return Bug(
        shape=Shape(code, NUMBERS),
        bad=str(bad),
        right=str(right),
        fix=("[0-9]", str(right)),
        wrong=other_digits(draw, right, bad),
        actual=f"it uses the number {bad} {WHERE}",
        expected=f"it should use {right}",
    )


def repeated_variable(draw: Draw) -> Bug:
    f, a, b, c = draw.names(4)
    k = draw.digits(1)[0]
    values = draw.pick((f"{a} + @", f"@ * {k}", f"{a} - @"), (f"{a} * @", f"@ - {a}", f"{k} + @"))
    code = _code(f"{f}({a}, {b}, {c})", draw.pick(BRANCHES, LIST, LOCAL_NAMES), values, f"{a} ? 5")
    return Bug(
        shape=Shape(code, ((7, 3, 2), (2, 9, 4), (5, 4, 6), (10, 6, 1), (3, 8, 7))),
        bad=c,
        right=b,
        wrong=(a, f, "0"),
        actual=f"it uses {c} {WHERE}",
        expected=f"it should use {b}",
    )


def repeated_index(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    bad, right = draw.random.sample(list(PLACES), 2)
    values = draw.pick(
        (f"{a}[@]", f"{a}[@] + {b}", f"{a}[@] * {b}"), (f"{a}[@] - {b}", f"{a}[@]", f"-{a}[@]")
    )
    code = _code(f"{f}({a}, {b})", draw.pick(BRANCHES, LIST, LOCAL_NAMES), values, f"{b} ? 3")
    return Bug(
        shape=Shape(code, (([4, 7, 9, 2], 3), ([5, 1, 8, 3, 6], 2), ([1, 2, 3, 4], 4), ([6, 6, 6, 6], 1))),
        bad=bad,
        right=right,
        fix=(r"\[-*[0-9]\]", f"[{right}]"),
        wrong=[f"[{place}]" for place in (*PLACES, "-2") if place not in (bad, right)],
        actual=f"it takes the {PLACES[bad]} item {WHERE}",
        expected=f"it should take the {PLACES[right]} one",
    )


def repeated_method(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    bad, right = draw.random.sample(list(METHODS), 2)
    values = draw.pick((f"{a}.@()", f"{b}.@()", f"{b} + {a}.@()"), (f"{b}.@() + {a}", f"{a}.@()", f"{b}.@()"))
    code = _code(f"{f}({a}, {b})", draw.pick(LIST, LOCAL_NAMES), values)
    return Bug(
        shape=Shape(
            code, ((" Red apple ", "blue SKY"), ("Green", " night and day"), ("noon", " Tea"), ("", ""))
        ),
        bad=bad,
        right=right,
        wrong=[name for name in METHODS if name not in (bad, right)] + ["count"],
        actual=f"it uses {bad} {WHERE}",
        expected=f"it should use {right}",
    )
