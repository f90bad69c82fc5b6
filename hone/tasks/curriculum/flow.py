"""Families of bugs in control flow: returns, conditions, initial values, edge cases."""

from __future__ import annotations

from hone.tasks.curriculum.arithmetic import PAIRS
from hone.tasks.curriculum.bug import Bug, Draw, Shape

LISTS = (([4, 7, 9],), ([5],), ([],), ([2, 2, 6, 1],))


def missing_return(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    op = draw.pick(*"+-*")
    loop = f"    {t} = 0\n    for item in {a}:\n        {t} += item\n    @"
    branch = f"    if {a} > {b}:\n        return {a}\n@{b}"
    branched = ((7, 3), (3, 7), (1, 4), (0, 2), (9, 2))
    filtered = (([4, 7], 5), ([1], 0), ([], 3), ([6, 8], 2))
    no_word = ("    return -", "    return not ", "    yield ")
    shape, returned, wrong = draw.pick(
        (Shape(f"def {f}({a}, {b}):\n    {t} = {a} {op} {b}\n@{t}", PAIRS), t, no_word),
        (Shape(f"def {f}({a}, {b}):\n@{a} {op} {b}", PAIRS), f"{a} {op} {b}", no_word),
        (Shape(f"def {f}({a}, {b}):\n{branch}", branched), f"{b} when {a} is not more than {b}", no_word),
        (Shape(f"def {f}({a}):\n{loop}", LISTS), t, ("return item", f"return {a}", f"print({t})")),
        (
            Shape(f"def {f}({a}, {b}):\n    {t} = [item for item in {a} if item > {b}]\n    @", filtered),
            t,
            (f"return {a}", f"return {b}", f"print({t})"),
        ),
    )
    bad, right = ("    ", "    return ") if wrong is no_word else ("", f"return {t}")
    return Bug(
        shape=shape,
        bad=bad,
        right=right,
        wrong=wrong,
        actual=draw.pick("it gives None", "it gives nothing back"),
        expected=f"it should return {returned}",
    )


def inverted_condition(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    flip = draw.chance(0.5)
    lists = (([3], 4), ([], 5), ([1, 2], 0), ([], 0), ([0], 7))
    among = ((3, [3, 4]), (5, [1]), (2, []), (7, [7]))
    several = (([3, 4, 5], [4]), ([1, 2], []), ([], [6]), ([7, 8], [7, 8]), ([2], [9]))
    same = ((3, 3), (4, 5), (0, 0), (6, 2))
    code, cases, (plain, negated), wrong, does, when = draw.pick(
        (
            f"    @{a}:\n        return {b}\n    return len({a}) + {b} + 1",
            lists,
            ("if ", "if not "),
            ("if None is ", "if 1 or ", "while "),
            f"give {b} when {a} is",
            ("filled", "empty"),
        ),
        (
            f"    return {a}@{b}",
            among,
            (" in ", " not in "),
            (" == ", " != ", " is "),
            f"give True when {a} is",
            (f"in {b}", f"missing from {b}"),
        ),
        (
            f"    return [item for item in {a} @ {b}]",
            several,
            ("if item in", "if item not in"),
            ("if item ==", "if item !=", "if item is"),
            "keep the items that are",
            (f"in {b}", f"missing from {b}"),
        ),
        (
            f"    if {a}@{b}:\n        return 0\n    return {a} + {b} + 1",
            same,
            (" == ", " != "),
            (" > ", " < ", " >= "),
            f"give 0 when {a} and {b} are",
            ("equal", "different"),
        ),
    )
    bad, right = (negated, plain) if flip else (plain, negated)
    wrong_when, right_when = reversed(when) if flip else when
    verb, _, object_ = does.partition(" ")
    return Bug(
        shape=Shape(f"def {f}({a}, {b}):\n{code}", cases),
        bad=bad,
        right=right,
        wrong=wrong,
        actual=f"it {verb}s {object_} {wrong_when}",
        expected=f"it should {does} {right_when}",
    )


def wrong_initial_value(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    k = draw.digits(1)[0]
    numbers = (([4, 7],), ([5],), ([],), ([2, 3, 1],))
    started = (([4, 7], 3), ([5], 2), ([], 6), ([2, 1], 0), ([3], 1))
    loop = f"    for item in {a}:\n        {t}"
    zero_or_one = draw.pick(*"01")
    subtracted = f"subtract the items of {a}"
    from_start = ("1" if zero_or_one == "0" else "0", a, f"-{b}")
    code, cases, bad, right, wrong, task = draw.pick(
        (f"({a}):\n    {t} = @\n{loop} +=", numbers, draw.pick("1", str(k)), "0", ("2", "-1", a), f"sum {a}"),
        (
            f"({a}):\n    {t} = @\n{loop} *=",
            numbers,
            draw.pick("0", str(k)),
            "1",
            ("-1", "10", "2"),
            f"multiply the items of {a}",
        ),
        (f"({a}, {b}):\n    {t} = @\n{loop} +=", started, zero_or_one, b, from_start, f"sum {a}"),
        (f"({a}, {b}):\n    {t} = @\n{loop} -=", started, zero_or_one, b, from_start, subtracted),
    )
    return Bug(
        shape=Shape(f"def {f}{code} item\n    return {t}", cases),
        bad=bad,
        right=right,
        wrong=wrong,
        fix=("[0-9]", right),
        actual=f"it starts from {bad}",
        expected=f"it should start from {right} and {task}",
    )


def missing_edge_case(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    k, other = draw.digits(2)
    answer = draw.pick("0", "1", str(k))
    empty = (([],), ([4, 6],), ([5],), ([2, 8, 3],))
    zero = ((7, 2), (5, 0), (9, 3), (0, 0), (8, 5))
    last_call, last_name = r".*(\(.*\))", r".* \(.*\)"
    code, parameters, cases, pattern, tested, when = draw.pick(
        (f"max({a})", (a,), empty, last_call, a, f"{a} is empty"),
        (f"sum({a}) // len({a})", (a,), empty, last_call, a, f"{a} is empty"),
        (f"{b} + {a}[0]", (a, b), [(x, 3) for (x,) in empty], r".* \(.*\)\[0\]", a, f"{a} is empty"),
        (f"{a} // {b}", (a, b), zero, last_name, b, f"{b} is 0"),
        (f"{a} % {b}", (a, b), zero, last_name, b, f"{b} is 0"),
    )
    return Bug(
        shape=Shape(f"def {f}({', '.join(parameters)}):\n    return @", cases),
        bad=code,
        right=f"{code} if {tested} else {answer}",
        fix=(pattern, rf"& if \1 else {answer}"),
        wrong=(
            rf"& if not \1 else {answer}",
            rf"& if \1 else {other if other != int(answer) else 0}",
            r"& if \1 else None",
        ),
        actual=draw.pick("it fails", "it stops with an error"),
        expected=f"it should give {answer} when {when}",
    )
