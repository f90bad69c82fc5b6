"""Families of bugs in calculations: operators, bounds, comparisons, arguments, numbers."""

from __future__ import annotations

from hone.tasks.curriculum.bug import Bug, Draw, Shape

NUMBERS = ((4,), (0,), (7,), (2,), (10,))
PAIRS = ((7, 3), (10, 4), (9, 2), (4, 0), (2, 2), (0, 0))
TRIPLES = ((7, 3, 2), (10, 4, 3), (9, 2, 1), (4, 0, 5), (2, 2, 2), (6, 5, 0))
LIST_AND_NUMBER = (([7, 9, 12], 3), ([5], 4), ([8, 2], 2), ([], 6), ([3, 1], 0), ([2, 2], 2))


def wrong_operator(draw: Draw) -> Bug:
    f, a, b, c = draw.names(4)
    t = draw.local()
    bad, right = draw.pick(("-", "+"), ("+", "-"), ("+", "*"), ("-", "*"))
    shape = draw.pick(
        Shape(f"def {f}({a}, {b}):\n    return {a}@{b}", PAIRS, a),
        Shape(f"def {f}({a}, {b}):\n    {t} = {a}@{b}\n    return {t}", PAIRS, a),
        Shape(f"def {f}({a}, {b}, {c}):\n    {t} = {a}@{b}\n    return {t} * {c}", TRIPLES, a),
        Shape(
            f"def {f}({a}, {b}):\n    return [item@{b} for item in {a}]",
            LIST_AND_NUMBER,
            f"each item of {a}",
        ),
    )
    x = shape.subject
    does = {"+": f"adds {b} to {x}", "-": f"subtracts {b} from {x}", "*": f"multiplies {x} by {b}"}
    should = {"+": f"add {b} to {x}", "-": f"subtract {b} from {x}", "*": f"multiply {x} by {b}"}
    return Bug(
        shape=shape,
        bad=f" {bad} ",
        right=f" {right} ",
        wrong=[f" {op} " for op in "+-*%" if op not in (bad, right)],
        actual=f"it {does[bad]}",
        expected=f"it should {should[right]}",
    )


def off_by_one(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    loop = f"    {t} = 0\n    for item in range({a}@:\n        {t} += item\n    return {t}"
    counted = ((2, 6), (5, 5), (1, 9), (0, 3))
    heads = (([4, 7, 9, 2], 2), ([5, 6, 8], 3), ([1, 2, 3, 4], 1), ([], 2))
    places = (([4, 7, 9, 2], 2), ([5, 6, 8], 1), ([1, 2, 3, 4], 3), ([6, 6], 1))
    shape, bad, right, end = draw.pick(
        (Shape(f"def {f}({a}):\n    return list(range(1, {a}@", NUMBERS, "listed from 1"), "", " + 1", "))"),
        (Shape(f"def {f}({a}):\n{loop}", NUMBERS, "summed"), "", " + 1", ")"),
        (Shape(f"def {f}({a}):\n    return list(range({a}@", NUMBERS, "listed from 0"), " + 1", "", "))"),
        (Shape(f"def {f}({a}, {b}):\n    return abs({b} - {a}@", counted, "counted"), "", " + 1", ")"),
        (Shape(f"def {f}({a}, {b}):\n    return {a}[:{b}@", heads, "cut"), " - 1", "", "]"),
        (Shape(f"def {f}({a}, {b}):\n    return {a}[{b}@", places, "taken"), "", " - 1", "]"),
    )
    actual, expected = {
        "listed from 1": (f"it leaves {a} out", f"list the numbers from 1 to {a} and include {a}"),
        "summed": (f"it leaves {a} out", f"sum the numbers up to {a} and include {a}"),
        "listed from 0": ("it gives one number too many", f"list the numbers from 0 and stop before {a}"),
        "counted": ("it gives one too few", f"count the numbers from {a} to {b} and include both"),
        "cut": ("it gives one item too few", f"give the first {b} items of {a}"),
        "taken": (f"it gives the item after number {b}", f"count the items of {a} from 1"),
    }[shape.subject]
    wrong = (" - 1", " + 2") if " + 1" in (bad, right) else (" + 1", " - 2")
    return Bug(
        shape=shape,
        bad=bad + end,
        right=right + end,
        wrong=[offset + end for offset in wrong],
        actual=actual,
        expected=f"it should {expected}",
    )


COMPARISONS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least"}


def wrong_comparison(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    k = draw.digits(1)[0]
    bad, right = draw.pick(*[(x, y) for x in COMPARISONS for y in COMPARISONS if x != y])
    around = ((3, 5), (5, 5), (7, 5), (0, 0), (9, 1))
    lists = (([3, 5, 7], 5), ([2, 4], 4), ([9, 1], 3), ([], 1), ([6, 6], 6))
    near = ((k,), (k - 1,), (k + 1,), (-3,), (12,))
    branch = f"if {a}@{b}:\n        return 0\n    return {a} + 1"
    code, cases, does, subject = draw.pick(
        (f"({a}, {b}):\n    return {a}@{b}", around, "give True when", f"{a} is {{}} {b}"),
        (f"({a}, {b}):\n    {branch}", around, "give 0 when", f"{a} is {{}} {b}"),
        (f"({a}):\n    return {a}@{k}", near, "give True when", f"{a} is {{}} {k}"),
        (
            f"({a}, {b}):\n    return [item for item in {a} if item@{b}]",
            lists,
            "keep the items",
            f"that are {{}} {b}",
        ),
    )
    verb, _, rest = does.partition(" ")
    return Bug(
        shape=Shape(f"def {f}{code}", cases),
        bad=f" {bad} ",
        right=f" {right} ",
        wrong=[f" {op} " for op in (*COMPARISONS, "==") if op not in (bad, right)],
        actual=f"it {verb}s {rest} {subject.format(COMPARISONS[bad])}",
        expected=f"it should {does} {subject.format(COMPARISONS[right])}",
    )


def swapped_arguments(draw: Draw) -> Bug:
    f, a, b, g, x, y, t = draw.names(7)
    k = draw.digits(1)[0]
    numbers = ((2, 5), (3, 2), (7, 4), (4, 4), (1, 3))
    called, cases, helper = draw.pick(
        ("pow", numbers, ""),
        ("divmod", ((7, 2), (9, 4), (3, 5), (4, 4), (12, 5)), ""),
        (g, numbers, f"def {g}({x}, {y}):\n    return {x} - {y}"),
        (g, numbers, f"def {g}({x}, {y}):\n    return {x} * {k} + {y}"),
        (g, ((4, 2), (1, 3), (5, 5), (2, 6)), f"def {g}({x}, {y}):\n    return list(range({x}, {y}))"),
    )
    code = draw.pick(
        f"def {f}({a}, {b}):\n    return {called}(@)",
        f"def {f}({a}, {b}):\n    {t} = {called}(@)\n    return {t}",
        f"def {f}({a}, {b}):\n    if not {a}:\n        return {a}\n    return {called}(@)",
    )
    actual, expected = draw.pick(
        (f"it calls {called} with {b} and then {a}", f"it should pass {a} first and {b} second"),
        (f"it mixes up what it passes to {called}", f"it should pass {a} before {b}"),
    )
    return Bug(
        shape=Shape(code, cases),
        bad=f"{b}, {a}",
        right=f"{a}, {b}",
        fix=(r"(\(.*\), \(.*\))", r"(\2, \1)"),
        wrong=(r"(\1, \1)", r"(\2, \2)", r"(\1, \2)"),
        actual=actual,
        expected=expected,
        helper=helper,
    )


def other_digits(draw: Draw, right: int, bad: int) -> list[str]:
    """Three digits near the right one, for wrong fixes."""
    near = sorted((n for n in range(1, 10) if n not in (right, bad)), key=lambda n: abs(n - right))
    return [str(n) for n in draw.random.sample(near[:3], 3)]


def wrong_default(draw: Draw) -> Bug:
    f, a, b, c = draw.names(4)
    bad, right = draw.digits(2)
    calls = ((4,), (7,), (3, 2), (5, 1))
    lists = (([4],), ([7, 1],), ([3, 2], 2), ([],))
    shape = draw.pick(
        Shape(f"def {f}({a}, {b}=@):\n    return {a} * {b}", calls),
        Shape(f"def {f}({a}, {b}=@):\n    return {a} - {b}", calls),
        Shape(
            f"def {f}({a}, {c}, {b}=@):\n    return {a} + {c} * {b}", ((4, 1), (7, 3), (3, 2, 2), (5, 0, 6))
        ),
        Shape(f"def {f}({a}, {b}=@):\n    return [item + {b} for item in {a}]", lists),
    )
    actual, expected = draw.pick(
        (f"it takes {bad} for {b} when {b} is not given", f"it should take {right}"),
        (f"it uses the default {bad} for {b}", f"it should use the default {right}"),
    )
    return Bug(
        shape=shape,
        bad=str(bad),
        right=str(right),
        fix=("=[0-9]", f"={right}"),
        wrong=[f"={digit}" for digit in other_digits(draw, right, bad)],
        actual=actual,
        expected=expected,
    )


def wrong_constant(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    constant = draw.pick("LIMIT", "STEP", "BASE")
    bad, right = draw.digits(2)
    numbers = ((4,), (11,), (7,), (right,), (bad,), (0,))
    above = tuple((n,) for n in range(1, 12))
    lists = (([4, 1],), ([7],), ([],), ([3, 5, 2],))
    code, cases, task = draw.pick(
        (f"({a}):\n    return {a} * @", numbers, f"multiply {a} by {right}"),
        (f"({a}):\n    {t} = {a} + @\n    return {t}", numbers, f"add {right} to {a}"),
        (f"({a}, {b}):\n    return {a} + {b} * @", PAIRS, f"multiply {b} by {right}"),
        (f"({a}):\n    return [item * @ for item in {a}]", lists, f"multiply each item of {a} by {right}"),
        (
            f"({a}):\n    if {a} > @:\n        return 0\n    return {a}",
            above,
            f"give 0 when {a} is more than {right}",
        ),
        (f"({a}):\n    return {a} - {constant}", numbers, f"subtract {right} from {a}"),
    )
    head = f"{constant} = @\n\n" if "@" not in code else ""
    return Bug(
        shape=Shape(f"{head}def {f}{code}", cases),
        bad=str(bad),
        right=str(right),
        fix=("[0-9]", str(right)),
        wrong=other_digits(draw, right, bad),
        actual=draw.pick(f"it uses the number {bad}", f"it works with {bad}"),
        expected=f"it should {task}",
    )
