"""Families of bugs in the use of lists, strings and their methods."""

from __future__ import annotations

from hone.tasks.curriculum.bug import Bug, Draw, Shape

PLACES = {"0": "first", "1": "second", "2": "third", "-1": "last"}


def wrong_index(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    bad, right = draw.random.sample(list(PLACES), 2)
    lists = (([4, 7, 9, 2],), ([5, 1, 8, 3, 6],), ([6, 6, 6, 6],), ([1, 2, 3, 4],))
    with_number = (([4, 7, 9, 2], 3), ([5, 1, 8, 3, 6], 2), ([6, 6, 6, 6], 1), ([1, 2, 3, 4], 4))
    rows = (([[4, 7, 9, 2], [1, 2, 3, 5, 8]],), ([[5, 1, 8, 3, 6]],), ([],), ([[6, 6, 6, 6]],))
    add = f"    {t} = {a}[@]\n    return {t} + {b}"
    shape, verb = draw.pick(
        (Shape(f"def {f}({a}):\n    return {a}[@]", lists, f"item of {a}"), "give"),
        (Shape(f"def {f}({a}, {b}):\n{add}", with_number, f"item of {a}"), f"add {b} to"),
        (
            Shape(f"def {f}({a}, {b}):\n    return {a}[@] * {b}", with_number, f"item of {a}"),
            f"multiply {b} by",
        ),
        (
            Shape(f"def {f}({a}):\n    return [item[@] for item in {a}]", rows, f"part of each item of {a}"),
            "give",
        ),
    )
    return Bug(
        shape=shape,
        bad=bad,
        right=right,
        fix=(r"\[-*[0-9]\]", f"[{right}]"),
        wrong=[f"[{place}]" for place in (*PLACES, "-2") if place not in (bad, right)],
        actual=draw.pick("it takes the wrong item", f"it takes the {PLACES[bad]} {shape.subject}"),
        expected=f"it should {verb} the {PLACES[right]} one",
    )


METHODS = {
    "upper": "in capital letters",
    "lower": "in small letters",
    "strip": "without spaces at the ends",
    "title": "with a capital letter for each word",
}
ENDS = {"startswith": "starts with {b}", "endswith": "ends with {b}"}
SEARCHES = {"count": "how many times {b} is in {a}", "index": "the place of {b} in {a}"}
ADDERS = {"append": "add each item of {a} whole", "extend": "add the parts of each item of {a}"}


def wrong_method(draw: Draw) -> Bug:
    f, a, b = draw.names(3)
    t = draw.local()
    texts = ((" Red apple ",), ("blue SKY",), ("Green",), (" night and day",), ("",))
    ends = (("apple", "app"), ("apple", "ple"), ("level", "le"), ("noon", "noon"), ("sky", "x"))
    searches = (([4, 7, 4], 4), ([5, 5, 5], 5), ([1, 2], 2), ([3, 9, 6, 6], 6))
    rows = (([[4, 7], [1]],), ([[5]],), ([],), ([[2, 3], [], [6]],))
    loop = f"    {t} = []\n    for item in {a}:\n        {t}.@(item)\n    return {t}"
    in_lists = [([text],) for (text,) in texts] + [([],)]
    group, shape, verb = draw.pick(
        (METHODS, Shape(f"def {f}({a}):\n    return {a}.@()", texts), f"give {a}"),
        (
            METHODS,
            Shape(f"def {f}({a}):\n    return [item.@() for item in {a}]", in_lists),
            f"give the items of {a}",
        ),
        (ENDS, Shape(f"def {f}({a}, {b}):\n    return {a}.@({b})", ends), f"give True when {a}"),
        (SEARCHES, Shape(f"def {f}({a}, {b}):\n    return {a}.@({b})", searches), "give"),
        (ADDERS, Shape(f"def {f}({a}):\n{loop}", rows), ""),
    )
    bad, right = draw.random.sample(list(group), 2)
    unused = {"count": ("remove", "append"), "append": ("remove", "insert"), "startswith": ("count", "find")}
    wrong = [name for name in group if name not in (bad, right)] or unused[next(iter(group))]
    meaning = {name: " ".join(f"{verb} {text.format(a=a, b=b)}".split()) for name, text in group.items()}
    return Bug(
        shape=shape,
        bad=bad,
        right=right,
        fix=("[a-z]*(", f"{right}("),
        wrong=[f"{name}(" for name in wrong],
        actual=draw.pick("it gives the wrong result", f"it uses {bad}"),
        expected=f"it should {meaning[right]}",
    )
