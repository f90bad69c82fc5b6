"""Families that occur in no training task; their fixes resemble trained ones."""

from __future__ import annotations

from hone.tasks.curriculum.arithmetic import LIST_AND_NUMBER, TRIPLES
from hone.tasks.curriculum.bug import Bug, Draw, Shape


def wrong_variable(draw: Draw) -> Bug:
    f, a, b, c = draw.names(4)
    t = draw.local()
    op = draw.pick(*"+-*")
    word = {"+": f"add {b} to {a}", "-": f"subtract {b} from {a}", "*": f"multiply {a} by {b}"}[op]
    lists = [(*case, number) for case, number in zip(LIST_AND_NUMBER, (1, 4, 5, 2, 0, 7), strict=True)]
    code, cases = draw.pick(
        (f"    return {a} {op} @", TRIPLES),
        (f"    {t} = {a} {op} @\n    return {t} + {c}", TRIPLES),
        (f"    if {c} > 2:\n        return {c}\n    return {a} {op} @", TRIPLES),
        (f"    return [item {op} @ for item in {a}]", lists),
    )
    return Bug(
        shape=Shape(f"def {f}({a}, {b}, {c}):\n{code}", cases),
        bad=c,
        right=b,
        wrong=(a, f, "0"),
        actual=f"it uses {c} where it should use {b}",
        expected=f"it should {word}",
    )


def missing_call(draw: Draw) -> Bug:
    f, a, b, g, x = draw.names(5)
    t = draw.local()
    k = draw.digits(1)[0]
    body = draw.pick(f"{x} * {k}", f"{x} + {k}", f"{x} - {k}")
    cases = ((7, 3), (10, 4), (9, 2), (4, 0), (2, 2))
    shape = draw.pick(
        Shape(f"def {f}({a}, {b}):\n    return @ + {b}", cases),
        Shape(f"def {f}({a}, {b}):\n    {t} = @ - {b}\n    return {t}", cases),
        Shape(f"def {f}({a}, {b}):\n    if {b} > 2:\n        return {b}\n    return @", cases),
        Shape(f"def {f}({a}, {b}):\n    {t} = {b} * 2\n    return {t} + @", cases),
    )
    return Bug(
        shape=shape,
        bad=a,
        right=f"{g}({a})",
        wrong=(g, f"{g}({b})", f"{f}({a})"),
        actual=f"it takes {a} as it is",
        expected=f"it should call {g} with {a} and use the result",
        helper=f"def {g}({x}):\n    return {body}",
    )
