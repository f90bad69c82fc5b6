"""Requirements files, and the record of what such places name."""

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
_NESTED = 16  # files that include one another; more is a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    requirements: tuple[Requirement, ...] = ()
    extras: tuple[str, ...] = ()  # of the project itself
    constraints: tuple[Requirement, ...] = ()
    unmet: tuple[str, ...] = ()  # what no package index can give: directories, archives

    def __bool__(self) -> bool:
        return bool(self.requirements or self.extras or self.unmet)

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            requirements=(*self.requirements, *other.requirements),
            extras=(*self.extras, *other.extras),
            constraints=(*self.constraints, *other.constraints),
            unmet=(*self.unmet, *other.unmet),
        )

    def __sub__(self, other: Needs) -> Needs:
        return Needs(
            requirements=tuple(r for r in self.requirements if r not in other.requirements),
            extras=self.extras,
            constraints=self.constraints,
            unmet=tuple(line for line in self.unmet if line not in other.unmet),
        )


def read_requirements(path: Path, root: Path, depth: int = 0) -> Needs:
    """A requirements file and those it includes. Options that name package indexes are not followed: those
    are the user's settings of uv.

    Raises TaskError when a file is missing, lies outside `root`, includes itself or holds no requirements.
    """
    shown = path.relative_to(root)
    if depth > _NESTED:
        raise TaskError(f"{shown} includes itself")
    if not path.resolve().is_relative_to(root.resolve()):
        raise TaskError(f"{shown} leads out of the repository")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TaskError(f"{shown} is not there, though another file of requirements names it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{shown} cannot be read as text") from error
    return parse_lines(text, path, root, depth)


def parse_lines(text: str, path: Path, root: Path, depth: int = 0) -> Needs:
    """`text` as it would stand in the requirements file `path`. Raises TaskError as `read_requirements`."""
    found = Needs()
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
            found |= Needs(constraints=(*inner.requirements, *inner.constraints))
        elif name in ("-e", "--editable"):
            found |= parse_line(value, f"{path.relative_to(root)}")
    return found


def parse_all(lines: Iterable[str], where: str, extra: str = "") -> Needs:
    """What requirements name that hold for this interpreter when `extra` is asked for. Raises TaskError as
    `parse_line`.
    """
    needs = Needs()
    for line in lines:
        needs |= parse_line(line, where, extra)
    return needs


def parse_line(line: str, where: str, extra: str = "") -> Needs:
    """One requirement: of a package, of the project itself (`.[test]`), or of what no index has.

    Raises TaskError when it is none of these, naming `where` it stands.
    """
    itself = _ITSELF.fullmatch(line)
    if itself:
        return Needs(extras=_names(itself.group(1)))
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        if re.match(r"[./]|\w+\+?\w*://|\w+/", line) or re.search(r"\.(?:whl|zip|tar\.gz)$", line):
            return Needs(unmet=(line,))
        raise TaskError(f"{where}: {line!r} is not a requirement") from error
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return Needs()
    if requirement.url is not None:
        return Needs(unmet=(line,))
    requirement.marker = None  # it holds; asked again, without the extra, it might not
    return Needs(requirements=(requirement,))


def _logical_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        plain = re.sub(r"(?:^|\s)#.*$", "", line).strip()
        if not plain.startswith("-"):
            plain = re.sub(r"\s--?[a-z].*$", "", plain)  # options of one requirement, such as its hashes
        if plain:
            yield plain


def _names(text: str | None) -> tuple[str, ...]:
    names: Iterable[str] = (text or "").split(",")
    return tuple(canonicalize_name(name.strip()) for name in names if name.strip())
