"""Where a bug is placed: its module, what stands around it, and the other modules of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hone.tasks.curriculum.bug import MARK, Bug, Draw
from hone.tasks.curriculum.edit import Edit

IGNORED = "__pycache__/\n.pytest_cache/\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A repository's modules around one bug."""

    module: str  # the one that holds the bug
    modules: Mapping[str, str]  # name -> source, the bug in it
    before: str  # the module's source before the buggy function was added to it; empty: there was none
    line: int  # of the bug, from 1; of the line before it where a whole line is missing
    indent: str  # of the missing line; empty where text is only wrong
    helper: tuple[str, tuple[int, ...]] | None  # a correct function beside it, and arguments to call it with


def place(bug: Bug, draw: Draw) -> Layout:
    """Choose what stands above and below the buggy function."""
    module = draw.name()
    modules: dict[str, str] = {}
    head: list[str] = []
    helper, tested = _helper(bug, draw)
    if draw.chance(0.3):
        head.append(f'"""Work with {draw.name()} and {draw.name()}."""\n')
    if draw.chance(0.3):
        for _ in range(draw.pick((1, 1, 2))):
            other, g, x = draw.names(3)
            modules[other] = f"def {g}({x}):\n    return {_body(x, draw)}\n"
            if not bug.helper and draw.chance(0.4):
                head.append(f"from {other} import {g}\n")
                break
    code = _without_missing_line(bug) if not bug.bad else bug.shape.code.replace(MARK, bug.bad)
    blocks = [helper, code] if helper and draw.chance(0.6) else [code, helper]
    blocks = [block + "\n" for block in blocks if block]
    source = "\n".join(head + blocks)
    before = "\n".join(head + [block for block in blocks if block != code + "\n"])
    modules[module] = source
    above = source[: source.index(code)].count("\n")
    template = bug.shape.code.splitlines()
    marked = next(i for i, line in enumerate(template) if MARK in line)
    indent = template[marked][: template[marked].index(MARK)] if not bug.bad else ""
    return Layout(
        module=module,
        modules=modules,
        before=before if helper else "",
        line=above + marked + (1 if bug.bad else 0),
        indent=indent,
        helper=tested,
    )


def edit(bug: Bug, layout: Layout, text: str, line: int | None = None) -> Edit:
    """The edit that puts `text` where the bug is, or makes the same change at another line."""
    return Edit(line=line or layout.line, old=bug.bad, new=layout.indent + text)


def _without_missing_line(bug: Bug) -> str:
    return "\n".join(line for line in bug.shape.code.splitlines() if line.strip() != MARK)


def _helper(bug: Bug, draw: Draw) -> tuple[str, tuple[str, tuple[int, ...]] | None]:
    if bug.helper:
        return bug.helper, None
    if len(bug.shape.code.splitlines()) > 4 or draw.chance(0.35):
        return "", None
    g, x = draw.names(2)
    return f"def {g}({x}):\n    return {_body(x, draw)}", (g, (draw.digits(1)[0],))


def _body(x: str, draw: Draw) -> str:
    return draw.pick(
        (x, f"{x} + {draw.digits(1)[0]}", f"{x} * {draw.digits(1)[0]}", f"{x} - 1", f"[{x}]", f"-{x}")
    )
