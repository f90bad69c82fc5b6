"""The Python interpreters of this machine, found where pyenv, uv, Debian and conda put them; none is run."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.tasks.errors import TaskError

OLDEST = (3, 6)  # that the test runner supports
_RELEASE = re.compile(r"3\.\d+\.\d+")
_UV = re.compile(r"cpython-(3\.\d+\.\d+)[+-].*")
_CONDA = re.compile(r"python-(3\.\d+\.\d+)-.*\.json")
_BINARY = re.compile(r"python(3\.\d+)")
_SYSTEM = (Path("/usr"), Path("/usr/local"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython on this machine."""

    version: str  # "3.9.18", or "3.9" where its path does not tell the release
    path: Path  # the program
    prefix: Path  # the directory of the whole installation
    source: str  # "hone" (the one that runs Hone), "pyenv", "uv", "system" or "conda"

    @property
    def minor(self) -> str:
        """The version without its release, such as 3.9."""
        return ".".join(self.version.split(".")[:2])

    @property
    def is_own(self) -> bool:
        """Whether it is the interpreter that runs Hone, which every sandbox of the host has as `python3`."""
        return self.source == "hone"


def own_interpreter() -> Interpreter:
    """Return the interpreter that runs Hone."""
    return Interpreter(
        version=platform.python_version(),
        path=Path(sys.executable),
        prefix=Path(sys.base_prefix),
        source="hone",
    )


def find_interpreter(python: str, interpreters: tuple[Interpreter, ...] | None = None) -> Interpreter:
    """Return the interpreter for a version such as "3.9": the one that runs Hone, else the newest release.

    Args:
        python: "" is the interpreter that runs Hone.
        interpreters: to choose from; None looks for those of this machine.
    Raises:
        TaskError: the version is older than the test runner supports, or none is on this machine.
    """
    if not python:
        return own_interpreter()
    wanted = ".".join(python.split(".")[:2])
    if not re.fullmatch(r"\d+\.\d+", wanted) or tuple(map(int, wanted.split("."))) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TaskError(f"it needs Python {python}, and tests run with Python {oldest} or later")
    known = find_interpreters() if interpreters is None else interpreters
    found = [each for each in known if each.minor == wanted]
    if not found:
        raise TaskError(
            f"it needs Python {wanted}, which this machine does not have: install it with pyenv, uv or conda "
            f"(`uv python install {wanted}`)"
        )
    return max(found, key=lambda each: (each.is_own, _order(each.version)))


def find_interpreters(
    home: Path | None = None, env: Mapping[str, str] | None = None, system: tuple[Path, ...] = _SYSTEM
) -> tuple[Interpreter, ...]:
    """Return the interpreters of this machine, Hone's own first, then by source and version.

    Looks at the directories of pyenv, uv and conda below `home` and in their variables, and at `system`.

    Args:
        home: None is the user's.
        env: None is the process's variables.
    """
    home, env = home or Path.home(), os.environ if env is None else env
    found = [own_interpreter()]
    for source, places in (
        ("pyenv", _pyenv(home, env)),
        ("uv", _uv(home, env)),
        ("conda", _conda(home, env)),
        ("system", _system(system)),
    ):
        for version, path, prefix in sorted(places, key=lambda place: _order(place[0])):
            if os.access(path, os.X_OK) and not _is_known(path, found):
                found.append(Interpreter(version=version, path=path, prefix=prefix, source=source))
    return tuple(found)


Place = tuple[str, Path, Path]  # version, program, prefix


def _pyenv(home: Path, env: Mapping[str, str]) -> Iterator[Place]:
    root = Path(env.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    for prefix in _directories(root):
        if _RELEASE.fullmatch(prefix.name):
            yield prefix.name, prefix / "bin" / "python", prefix


def _uv(home: Path, env: Mapping[str, str]) -> Iterator[Place]:
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    for prefix in _directories(Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")):
        match = _UV.fullmatch(prefix.name)
        if match and not prefix.is_symlink():
            yield match[1], prefix / "bin" / "python3", prefix


def _conda(home: Path, env: Mapping[str, str]) -> Iterator[Place]:
    bases = [Path(env["CONDA_PREFIX"])] if env.get("CONDA_PREFIX") else []
    names = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")
    bases += [folder / name for folder in (home, Path("/opt")) for name in names]
    bases.append(Path("/opt/conda"))
    for base in bases:
        for prefix in (base, *_directories(base / "envs")):
            for record in _entries(prefix / "conda-meta"):
                if match := _CONDA.fullmatch(record.name):
                    yield match[1], prefix / "bin" / "python", prefix


def _system(prefixes: tuple[Path, ...]) -> Iterator[Place]:
    for prefix in prefixes:
        for path in _entries(prefix / "bin"):
            if match := _BINARY.fullmatch(path.name):
                yield match[1], path, prefix


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _directories(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _is_known(path: Path, found: list[Interpreter]) -> bool:
    return any(path.resolve() == each.path.resolve() for each in found)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
