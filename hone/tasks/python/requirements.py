"""Requirements files and lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError

_OPTION = re.compile(r"(-[a-zA-Z]|--[a-z-]+)(?:\s+|=)?(.*)")
_ITSELF = re.compile(r"\.(?:/)?(?:\[([^\]]*)\])?")
_NESTED = 16  # levels of included files; more is a cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    requirements: tuple[Requirement, ...] = ()
    extras: tuple[str, ...] = ()  # of the project itself
    constraints: tuple[Requirement, ...] = ()
    unavailable: tuple[str, ...] = ()  # not on a package index: directories, archives, URLs

    def __bool__(self) -> bool:
        return bool(self.requirements or self.extras or self.unavailable)

    def __or__(self, other: Requirements) -> Requirements:
        return Requirements.union((self, other))

    @classmethod
    def union(cls, parts: Iterable[Requirements]) -> Requirements:
        """Return the requirements of all parts, in their order."""
        listed = list(parts)
        return cls(
            requirements=tuple(each for part in listed for each in part.requirements),
            extras=tuple(each for part in listed for each in part.extras),
            constraints=tuple(each for part in listed for each in part.constraints),
            unavailable=tuple(each for part in listed for each in part.unavailable),
        )


def read_requirements(path: Path, root: Path, depth: int = 0) -> Requirements:
    """Return the requirements of a file and those it includes. Its package indexes are ignored: the user
    configures them for uv.

    Raises TaskError when a file is missing, outside `root`, includes itself or cannot be parsed.
    """
    return parse_lines(_read(path, root, depth), path, root, depth)


def _read(path: Path, root: Path, depth: int) -> str:
    shown = path.relative_to(root)
    if depth > _NESTED:
        raise TaskError(f"{shown} includes itself")
    if not path.resolve().is_relative_to(root.resolve()):
        raise TaskError(f"{shown} is outside of the repository")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TaskError(f"{shown} does not exist, but another requirements file includes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{shown} cannot be read as text") from error


def requirement_lines(path: Path, root: Path, depth: int = 0) -> list[str]:
    """Return the lines of a requirements file and those it includes, with their markers, for any Python.

    The project itself, directories and options are left out. Raises TaskError as `read_requirements`.
    """
    lines: list[str] = []
    for line in _logical_lines(_read(path, root, depth)):
        option = _OPTION.match(line)
        if option is None:
            if not _ITSELF.fullmatch(line) and not line.startswith((".", "/")):
                lines.append(line)
        elif option[1] in ("-r", "--requirement"):
            lines += requirement_lines(path.parent / option[2], root, depth + 1)
    return lines


def parse_lines(text: str, path: Path, root: Path, depth: int = 0) -> Requirements:
    """Return the requirements of `text` in the file `path`. Raises TaskError as `read_requirements`."""
    found = Requirements()
    for line in _logical_lines(text):
        option = _OPTION.match(line)
        if option is None:
            found |= parse_line(line, f"{path.relative_to(root)}")
            continue
        name, value = option.groups()
        if name in ("-r", "--requirement"):
            found |= read_requirements(path.parent / value, root, depth + 1)
        elif name in ("-c", "--constraint"):
            inner = read_requirements(path.parent / value, root, depth + 1)
            found |= Requirements(constraints=(*inner.requirements, *inner.constraints))
        elif name in ("-e", "--editable"):
            found |= parse_line(value, f"{path.relative_to(root)}")
    return found


def parse_all(lines: Iterable[str], where: str, extra: str = "") -> Requirements:
    """Return the requirements whose markers hold for this interpreter and `extra`.

    Raises TaskError as `parse_line`.
    """
    return Requirements.union(parse_line(line, where, extra) for line in lines)


def parse_line(line: str, where: str, extra: str = "") -> Requirements:
    """Return one requirement: of a package, of the project itself (`.[test]`), or of a URL or path.

    It is empty unless the marker holds for this interpreter and, given an `extra`, requires that extra.

    Raises TaskError for other text; `where` names its file.
    """
    itself = _ITSELF.fullmatch(line)
    if itself:
        return Requirements(extras=_names(itself.group(1)))
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        if re.match(r"[./]|\w+\+?\w*://|\w+/", line) or re.search(r"\.(?:whl|zip|tar\.gz)$", line):
            return Requirements(unavailable=(line,))
        raise TaskError(f"{where}: {line!r} is not a requirement") from error
    marker = requirement.marker
    holds = [marker is None or marker.evaluate({"extra": name}) for name in ("", extra)]
    if holds != [not extra, True]:
        return Requirements()
    if requirement.url is not None:
        return Requirements(unavailable=(line,))
    requirement.marker = None  # it holds here, but might not without the extra
    return Requirements(requirements=(requirement,))


def _logical_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        plain = re.sub(r"(?:^|\s)#.*$", "", line).strip()
        if not plain.startswith("-"):
            plain = re.sub(r"\s--?[a-z].*$", "", plain)  # options of a requirement, such as hashes
        if plain:
            yield plain


def _names(text: str | None) -> tuple[str, ...]:
    names: Iterable[str] = (text or "").split(",")
    return tuple(canonicalize_name(name.strip()) for name in names if name.strip())
