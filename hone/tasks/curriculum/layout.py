"""The modules of a generated repository: the faulty ones and those around them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hone.tasks.curriculum.bug import MARK, Bug, Draw, Family

MODULES = (4, 8)  # fewest and most modules of a repository with look-alikes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which bugs a task has, and among what."""

    modules: tuple[tuple[Family, ...], ...]  # for each faulty module, the families of its bugs
    look_alikes: bool = False  # whether MODULES modules resemble and use the faulty one

    @property
    def family(self) -> str:
        """The names of the families, joined by "+"."""
        return "+".join(family.__name__ for families in self.modules for family in families)


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A correct function beside the buggy one."""

    name: str
    source: str
    arguments: tuple[int, ...] = ()  # of a test call; empty: it is not tested


class FaultyLine(NamedTuple):
    number: int  # from 1; where the line is missing, of the line before it
    indent: str  # of a missing line; otherwise empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bug in a module."""

    module: str
    bug: Bug
    lines: tuple[FaultyLine, ...]  # the last one first, so that no edit moves the line of a later edit

    @property
    def function(self) -> str:
        """The name of the buggy function."""
        return self.bug.shape.function


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyModule:
    name: str
    buggy: str
    fixed: str
    before: str  # the source before the buggy functions were added; may be empty
    faults: tuple[Fault, ...]  # the last one first, as their lines
    helper: Helper | None

    @property
    def names(self) -> tuple[str, ...]:
        """The module, and its buggy functions, each followed by its parameters."""
        functions = ((fault.function, *fault.bug.shape.parameters) for fault in self.faults)
        return (self.name, *itertools.chain.from_iterable(functions))


class Place(NamedTuple):
    module: str
    line: int  # from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The modules of one task."""

    correct: Mapping[str, str]  # name -> source
    faulty: tuple[FaultyModule, ...]
    similar: tuple[Place, ...] = ()  # lines of correct modules that resemble the faulty one, by file name

    @property
    def buggy(self) -> dict[str, str]:
        """All modules with the bugs."""
        return {**self.correct, **{module.name: module.buggy for module in self.faulty}}

    @property
    def fixed(self) -> dict[str, str]:
        """All modules without the bugs."""
        return {**self.correct, **{module.name: module.fixed for module in self.faulty}}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults in the order in which the issue names them and their fixes are listed."""
        return tuple(fault for module in self.faulty for fault in module.faults)

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the buggy functions."""
        return tuple(fault.function for fault in self.faults)

    @property
    def names(self) -> tuple[str, ...]:
        """Each faulty module, followed by its buggy functions, each followed by its parameters."""
        return tuple(name for module in self.faulty for name in module.names)


def lay_out(plan: Plan, draw: Draw) -> Repository:
    """Draw the bugs of `plan` and the modules around them."""
    correct: dict[str, str] = {}
    faulty: list[FaultyModule] = []
    for families in plan.modules:
        module, others = _faulty_module([family(draw) for family in families], draw)
        faulty.append(module)
        correct |= others
    repository = Repository(correct=correct, faulty=tuple(faulty))
    return _with_look_alikes(repository, plan.modules[0][0], draw) if plan.look_alikes else repository


def _faulty_module(bugs: Sequence[Bug], draw: Draw) -> tuple[FaultyModule, dict[str, str]]:
    """Choose the code above and below the buggy functions; return their module and correct ones."""
    module = draw.name()
    others, imports = _other_modules(draw)
    helper, imports = _helper(bugs[0], draw, imports)
    # A bug is never on a module's first line, so that a wrong edit can be one line early.
    at_top = MARK in bugs[0].shape.code.splitlines()[0]
    head = [f'"""Work with {draw.name()} and {draw.name()}."""\n'] if at_top or draw.chance(0.3) else []
    head += [f"from {other} import {name}\n" for other, name in imports.items()]
    parts: list[str | Bug] = [bugs[0]]
    if helper:
        parts.insert(0 if draw.chance(0.6) else 1, helper.source)
    for bug in bugs[1:]:
        parts += [f"{bug.helper}\n", bug] if bug.helper else [bug]
    parts = [*head, *parts]
    faulty = FaultyModule(
        name=module,
        buggy="\n".join(part.buggy if isinstance(part, Bug) else part for part in parts),
        fixed="\n".join(part.fixed if isinstance(part, Bug) else part for part in parts),
        before="\n".join([*head, helper.source]) if helper else "",
        faults=_faults(module, parts),
        helper=helper,
    )
    return faulty, others


def _faults(module: str, parts: Sequence[str | Bug]) -> tuple[Fault, ...]:
    """Return the faults of a module that consists of `parts` with an empty line between them."""
    texts = [part.buggy if isinstance(part, Bug) else part for part in parts]
    first_lines = itertools.accumulate((text.count("\n") + 1 for text in texts), initial=1)
    faults = [
        Fault(module=module, bug=part, lines=_faulty_lines(part, first))
        for part, first in zip(parts, first_lines, strict=False)
        if isinstance(part, Bug)
    ]
    return tuple(reversed(faults))


def _faulty_lines(bug: Bug, first: int) -> tuple[FaultyLine, ...]:
    """Return the faulty lines of a bug whose code begins on line `first`."""
    template = bug.shape.code.splitlines()
    marked = [number for number, line in enumerate(template) if MARK in line]
    if bug.bad:
        lines = [FaultyLine(first + number, "") for number in marked]
    else:  # the lines above that are missing, and this one, do not count
        lines = [
            FaultyLine(first + number - missing, template[number][: template[number].index(MARK)])
            for missing, number in enumerate(marked, start=1)
        ]
    return tuple(reversed(lines))


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


def _with_look_alikes(repository: Repository, family: Family, draw: Draw) -> Repository:
    """Add modules that use the faulty function, each with a correct function of the same family."""
    (fault,) = repository.faults
    wanted = draw.random.randint(*MODULES) - len(repository.buggy)
    names = sorted(tuple(draw.names(2)) for _ in range(wanted))  # of the modules and of their functions
    modules: dict[str, str] = {}
    similar: list[Place] = []
    for module, caller in names:
        bug = family(draw.branch())
        parameters = ", ".join(fault.bug.shape.parameters)
        above = [f"from {fault.module} import {fault.function}\n"]
        above += [f"{bug.helper}\n"] if bug.helper else []
        call = f"def {caller}({parameters}):\n    return {fault.function}({parameters})\n"
        modules[module] = "\n".join([*above, bug.fixed, call])
        first = sum(text.count("\n") + 1 for text in above) + 1
        marked = next(i for i, line in enumerate(bug.shape.code.splitlines()) if MARK in line)
        similar.append(Place(module, first + marked))
    return Repository(
        correct={**repository.correct, **modules}, faulty=repository.faulty, similar=tuple(similar)
    )
