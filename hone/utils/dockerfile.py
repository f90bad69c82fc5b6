"""Read a Dockerfile: its instructions, the images that it needs, and where it leads.

Format: docs.docker.com/reference/dockerfile. A builder reads the file itself and refuses what it does not
know; nothing here does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*")
_FLAG = re.compile(r"--[a-z-]+(?:=(?:\"[^\"]*\"|\S)*)?(?:\s+|$)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    line: int  # where it begins, from 1
    name: str  # in upper case
    flags: tuple[str, ...]  # such as `--from=builder`
    value: str  # the rest, its lines joined


def read_instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile: comments left out, continued lines joined."""
    lines = text.removeprefix("\ufeff").splitlines()
    ends = re.compile(re.escape(_escape_character(lines)) + r"[ \t]*$")
    found: list[Instruction] = []
    parts: list[str] = []
    first = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        parts.append(ends.sub("", line))
        if not ends.search(line):
            found.append(_instruction(first, "".join(parts)))
            parts = []
    if parts:
        found.append(_instruction(first, "".join(parts)))
    return found


def _escape_character(lines: Sequence[str]) -> str:
    """Return the character that continues a line, which a directive at the top may set."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            break
        if directive[1].lower() == "escape":
            return directive[2]
    return "\\"


def _instruction(line: int, text: str) -> Instruction:
    name, value = (*text.split(None, 1), "")[:2]
    value, flags = value.strip(), list[str]()
    while flag := _FLAG.match(value):
        flags.append(flag[0].strip())
        value = value[flag.end() :]
    return Instruction(line=line, name=name.upper(), flags=tuple(flags), value=value)


def base_images(instructions: Sequence[Instruction]) -> list[str]:
    """Return the images that a build starts or copies from, each once, as the Dockerfile names them.

    Left out are stages, `scratch`, and names with a variable that has no default value.
    """
    arguments: dict[str, str] = {}
    stages: set[str] = {"scratch"}
    names: dict[str, None] = {}
    started = False
    for found in instructions:
        if found.name == "ARG" and not started:
            for word in found.value.split():
                key, given, default = word.partition("=")
                if given:
                    arguments[key] = expand(default.strip("\"'"), arguments) or ""
        for word in _origins(found):
            name = expand(word.strip("\"'"), arguments)
            if name and not name.isdigit() and name.lower() not in stages:
                names[name] = None
        if found.name == "FROM":
            started = True
            stages.add(_stage(found)[1] or "scratch")
    return list(names)


def _origins(found: Instruction) -> Iterator[str]:
    """Yield the images or stages that an instruction names."""
    if found.name == "FROM":
        yield from found.value.split()[:1]
    for flag in found.flags:
        if found.name in ("COPY", "ADD") and flag.startswith("--from="):
            yield flag.removeprefix("--from=")
        if found.name == "RUN" and flag.startswith("--mount="):
            for option in flag.removeprefix("--mount=").split(","):
                if option.startswith("from="):
                    yield option.removeprefix("from=")


def expand(text: str, values: Mapping[str, str]) -> str | None:
    """Return the text with its variables replaced; None where one has no value."""
    unknown = False

    def value(found: re.Match[str]) -> str:
        nonlocal unknown
        known = values.get(found[1] or found[2])
        if found[3] == ":-":
            return known or found[4]
        if found[3] == ":+":
            return found[4] if known else ""
        unknown = unknown or known is None
        return known or ""

    expanded = _VARIABLE.sub(value, text)
    return None if unknown or "$" in expanded else expanded


def last_workdir(instructions: Sequence[Instruction]) -> str:
    """Return the directory that the WORKDIR instructions of the last stage lead to; "/" without any."""
    workdirs: dict[str, str] = {}  # of named stages
    name, workdir = "", "/"
    for found in instructions:
        if found.name == "FROM":
            start, name = _stage(found)
            workdir = workdirs.get(start, "/")
        elif found.name == "WORKDIR":
            workdir = posixpath.join(workdir, found.value.strip("\"'"))
        if name:
            workdirs[name] = workdir
    return workdir


def _stage(found: Instruction) -> tuple[str, str]:
    """Return what a FROM starts from, and the name that it gives to the stage, both in lower case."""
    words = found.value.lower().split()
    return words[0] if words else "", words[2] if len(words) == 3 and words[1] == "as" else ""
