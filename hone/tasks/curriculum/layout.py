"""The repository around a bug: its module and the other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hone.tasks.curriculum.bug import MARK, Bug, Draw, Edit, Substitution


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A correct function beside the buggy one."""

    name: str
    source: str
    arguments: tuple[int, ...] = ()  # of a test call; empty: it is not tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A repository's modules around one bug."""

    module: str  # the module with the bug
    modules: Mapping[str, str]  # name -> source with the bug
    fixed: str  # the source of `module` without the bug
    before: str  # the module's source before the buggy function was added; may be empty
    line: int  # of the bug, from 1; where a line is missing, of the line before it
    indent: str  # of the missing line; otherwise empty
    helper: Helper | None


def place(bug: Bug, draw: Draw) -> Layout:
    """Choose the code above and below the buggy function."""
    module = draw.name()
    modules, imports = _other_modules(draw)
    helper, imports = _helper(bug, draw, imports)
    template = bug.shape.code.splitlines()
    marked = next(i for i, line in enumerate(template) if MARK in line)
    # A bug is never on a module's first line, so that a wrong edit can be one line early.
    head = [f'"""Work with {draw.name()} and {draw.name()}."""\n'] if not marked or draw.chance(0.3) else []
    head += [f"from {other} import {name}\n" for other, name in imports.items()]
    line_missing = not bug.bad
    lines = template[:marked] + template[marked + 1 :] if line_missing else template
    code = "\n".join(lines).replace(MARK, bug.bad) + "\n"
    above, below = list(head), []
    if helper:
        (above if draw.chance(0.6) else below).append(helper.source)
    modules[module] = "\n".join([*above, code, *below])
    fixed = bug.shape.code.replace(MARK, bug.right) + "\n"
    first_line = sum(block.count("\n") + 1 for block in above) + 1
    return Layout(
        module=module,
        modules=modules,
        fixed="\n".join([*above, fixed, *below]),
        before="\n".join([*head, helper.source]) if helper else "",
        line=first_line + marked - line_missing,
        indent=template[marked][: template[marked].index(MARK)] if line_missing else "",
        helper=helper,
    )


def edit(bug: Bug, layout: Layout, new: str | None = None, *, line: int | None = None) -> Edit:
    """Return the edit that fixes the bug, or a wrong one with another replacement or line."""
    fix = bug.fix or Substitution(pattern=bug.bad, replacement=bug.right)
    new = fix.replacement if new is None else new
    return Edit(line=line or layout.line, old=fix.pattern, new=layout.indent + new)


def _other_modules(draw: Draw) -> tuple[dict[str, str], dict[str, str]]:
    """Return the other modules by name, and the function that each exports."""
    modules: dict[str, str] = {}
    functions: dict[str, str] = {}
    for _ in range(draw.random.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2))):
        module, name, parameter = draw.names(3)
        modules[module] = f"def {name}({parameter}):\n    return {_body(parameter, draw)}\n"
        functions[module] = name
    return modules, functions


def _helper(bug: Bug, draw: Draw, functions: Mapping[str, str]) -> tuple[Helper | None, dict[str, str]]:
    """Return a function beside the buggy one or None, and the imports that it uses."""
    if bug.helper:
        return Helper(name=bug.helper.split("(")[0].removeprefix("def "), source=bug.helper + "\n"), {}
    if bug.shape.code.count("\n") > 3 or draw.chance(0.35):
        return None, {}
    name, x, y = draw.names(3)
    if functions:
        other, function = draw.pick(*list(functions.items()))
        source = f"def {name}({x}):\n    return {function}({x})\n"
        return Helper(name=name, source=source, arguments=(draw.digits(1)[0],)), {other: function}
    if draw.chance(0.3):
        source = f"def {name}({x}, {y}):\n    return {x} {draw.pick(*'+-*')} {y}\n"
        return Helper(name=name, source=source, arguments=tuple(draw.digits(2))), {}
    source = f"def {name}({x}):\n    return {_body(x, draw)}\n"
    return Helper(name=name, source=source, arguments=(draw.digits(1)[0],)), {}


def _body(x: str, draw: Draw) -> str:
    k = draw.digits(1)[0]
    return draw.pick(x, f"{x} + {k}", f"{x} * {k}", f"{x} - 1", f"[{x}]", f"-{x}")
