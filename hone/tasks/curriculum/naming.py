"""Families of bugs whose fix writes a name: of a function, of a key, of a builtin around a variable."""

from __future__ import annotations

from hone.tasks.curriculum.arithmetic import PAIRS
from hone.tasks.curriculum.bug import Bug, Draw, Shape
from hone.tasks.curriculum.flow import LISTS


def wrong_call(draw: Draw) -> Bug:
    f, a, b, g, h, x = draw.names(6)
    t = draw.local()
    added, factor = draw.digits(2)
    code, cases = draw.pick(
        (f"({a}, {b}):\n    return @({a}) + {b}", PAIRS),
        (f"({a}, {b}):\n    {t} = @({a})\n    return {t} - {b}", PAIRS),
        (f"({a}, {b}):\n    if {b} > 2:\n        return {b}\n    return @({a})", PAIRS),
        (f"({a}):\n    return [@(item) for item in {a}]", LISTS),
    )
    actual, expected = draw.pick(
        (f"it calls {g}", f"it should call {h}"),
        (f"it uses the function {g} where it should use {h}", f"it should multiply by {factor}"),
    )
    return Bug(
        shape=Shape(f"def {f}{code}", cases),
        bad=g,
        right=h,
        wrong=(f, a, "len", "print"),
        actual=actual,
        expected=expected,
        helper=f"def {g}({x}):\n    return {x} + {added}\n\ndef {h}({x}):\n    return {x} * {factor}",
    )


def wrong_key(draw: Draw) -> Bug:
    f, a, b, bad, right = draw.names(5)
    t = draw.local()
    rows = ({bad: 4, right: 7}, {bad: 1, right: 3}, {bad: 9, right: 2}, {bad: 5, right: 5})
    with_number = tuple(zip(rows, (2, 5, 3, 0), strict=True))
    lists = (([rows[0], rows[1]],), ([rows[2]],), ([],), ([rows[3]],))
    code, cases = draw.pick(
        (f'({a}):\n    return {a}["@"]', tuple((row,) for row in rows)),
        (f'({a}, {b}):\n    return {a}["@"] + {b}', with_number),
        (f'({a}, {b}):\n    {t} = {a}["@"]\n    return {t} * {b}', with_number),
        (f'({a}):\n    return [item["@"] for item in {a}]', lists),
    )
    actual, expected = draw.pick(
        (f"it reads the key {bad}", f"it should read {right}"),
        (f"it uses the key {bad} where it should use {right}", f"it should look up {right} in {a}"),
    )
    return Bug(
        shape=Shape(f"def {f}{code}", cases),
        bad=bad,
        right=right,
        wrong=(a, f, "key", "item"),
        actual=actual,
        expected=expected,
    )


def missing_builtin(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    numbers = ((7, 3), (-4, 2), (-9, 5), (0, 1), (-2, 0))
    lists = (([4, 7, 9], 2), ([5, 1], 3), ([6, 2, 2], 0), ([3], 1), ([8, 0], 5))
    of_number, of_list = draw.pick("abs", "bool", "float"), draw.pick("sum", "len", "max", "min")
    builtin, code, cases = draw.pick(
        (of_number, "    return @", numbers),
        (of_number, f"    {t} = @\n    return {t} - {b}", numbers),
        (of_list, f"    {t} = @\n    return {t}", lists),
        (of_list, f"    if {b} > 2:\n        return {b}\n    return @", lists),
    )
    actual, expected = draw.pick(
        (f"it leaves {a} as it is", f"it should take {builtin} of {a}"),
        (f"it takes {a} without {builtin}", f"it should call {builtin} with {a}"),
    )
    return Bug(
        shape=Shape(f"def {f}({a}, {b}):\n{code}", cases),
        bad=a,
        right=f"{builtin}({a})",
        wrong=(builtin, f"{builtin}({b})", f"{f}({a})", b),
        actual=actual,
        expected=expected,
    )
