"""A project's metadata and installed files, from its own build; the import paths of its tree."""

from __future__ import annotations

import configparser
import dataclasses
import os
import shutil
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.metadata import parse_email
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.interpreters import Interpreter, own_interpreter
from hone.tasks.python.requirements import Requirements, parse_all
from hone.tasks.python.tool import pretended_version, run_uv

IMAGE = "give its tasks an image (docker://NAME or rootfs:DIR) that holds it installed"
NO_SOURCES = (".git", ".hg", ".tox", ".nox", ".venv", "node_modules", "__pycache__")

_COMPILED = (".so", ".pyd", ".dylib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A distribution; `name` is empty when the tree has none."""

    name: str = ""
    version: str = ""
    requirements: Requirements = field(default_factory=Requirements)
    extras: Mapping[str, Requirements] = field(default_factory=dict[str, Requirements])  # by canonical name
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # installed path -> content


def read_project(
    tree: Path, scratch: Path, version: str, *, interpreter: Interpreter | None = None, newest: str = ""
) -> Project:
    """Build the project's wheel from a copy of `tree` and read it; `scratch` is an empty directory.

    Args:
        interpreter: None is the one that runs Hone.
        newest: a day; no tool of the build is newer.

    The build runs code of the repository, which is the user's own. A tree with static metadata and without a
    build system is not built.

    Raises TaskError when the build fails, compiles extensions or requires another Python.
    """
    interpreter = interpreter or own_interpreter()
    pyproject = read_toml(tree / "pyproject.toml")
    static = pyproject.get("project", {})
    built = "build-system" in pyproject or (tree / "setup.py").is_file() or _names_itself(tree)
    if not built and not static:
        return Project()
    if not built and not {"version", "dependencies"} & set(static.get("dynamic", ())):
        optional = static.get("optional-dependencies", {})
        requirements = parse_all(static.get("dependencies", ()), "pyproject.toml")
        extras = {extra: parse_all(lines, "pyproject.toml") for extra, lines in optional.items()}
        python = static.get("requires-python")
        return _project(static["name"], static.get("version", "0"), requirements, extras, python, interpreter)
    return _built(_wheel(tree, scratch, version or _declared_version(tree), interpreter, newest), interpreter)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a file, empty when it does not exist. Raises TaskError when it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TaskError(f"{path.name} is not TOML: {error}") from error


def read_ini(path: Path) -> configparser.ConfigParser:
    """Return the sections of a file, none when it does not exist. Raises TaskError when it is not INI."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (configparser.Error, ValueError) as error:
        raise TaskError(f"{path.name} cannot be read: {str(error).splitlines()[0]}") from error
    return parser


def _names_itself(tree: Path) -> bool:
    return read_ini(tree / "setup.cfg").has_option("metadata", "name")


def _declared_version(tree: Path) -> str:
    """Return the version of PKG-INFO or 0.0.0, for builds that ask version control."""
    try:
        declared = parse_email((tree / "PKG-INFO").read_bytes())[0].get("version")
    except OSError:
        declared = None
    return declared or "0.0.0"


def _wheel(tree: Path, scratch: Path, version: str, interpreter: Interpreter, newest: str) -> Path:
    sources, built = scratch / "sources", scratch / "built"
    ignored = shutil.ignore_patterns(*NO_SOURCES)
    shutil.copytree(tree, sources, symlinks=True, ignore=ignored)  # builds write into the source directory
    command = ["build", "--wheel", "--out-dir", str(built), str(sources)]
    command += ["--exclude-newer", newest] if newest else []
    try:
        run_uv(
            command,
            failure="the repository cannot be built",
            env=pretended_version(version),
            python=interpreter.path,
        )
    except TaskError as error:
        raise TaskError(f"{error}. Correct the build, or {IMAGE}") from error
    return next(built.glob("*.whl"))


def _built(wheel: Path, interpreter: Interpreter) -> Project:
    with zipfile.ZipFile(wheel) as archive:
        files: dict[str, bytes] = {}
        metadata = b""
        for name in archive.namelist():
            top, _, rest = name.partition("/")
            if top.endswith(".dist-info"):
                metadata = archive.read(name) if rest == "METADATA" else metadata
            elif top.endswith(".data"):
                kind, _, inner = rest.partition("/")
                if kind in ("purelib", "platlib"):
                    files[inner] = archive.read(name)
            elif not name.endswith("/"):
                files[name] = archive.read(name)
    compiled = sorted(name for name in files if name.endswith(_COMPILED))
    if compiled:
        raise TaskError(f"the repository has compiled extensions of its own ({compiled[0]}): {IMAGE}")
    raw, _ = parse_email(metadata)
    name, lines = raw.get("name", ""), raw.get("requires_dist", ())
    where = f"the dependencies of {name}"
    requirements = parse_all(lines, where)
    extras = {extra: parse_all(lines, where, extra) for extra in raw.get("provides_extra", ())}
    python = raw.get("requires_python")
    project = _project(name, raw.get("version", ""), requirements, extras, python, interpreter)
    return dataclasses.replace(project, files=files)


def _project(
    name: str,
    version: str,
    requirements: Requirements,
    extras: Mapping[str, Requirements],
    python: str | None,
    interpreter: Interpreter,
) -> Project:
    try:
        fits = SpecifierSet(python or "").contains(interpreter.version, prereleases=True)
    except InvalidSpecifier:
        fits = True  # an invalid specifier restricts nothing
    if not fits:
        raise TaskError(f"{name} needs Python {python}, and its tests have {interpreter.version}: {IMAGE}")
    by_name: dict[str, Requirements] = {canonicalize_name(extra): needed for extra, needed in extras.items()}
    return Project(name=name, version=version, requirements=requirements, extras=by_name)


_GENERATED_BYTES = 1 << 20  # larger files are generated data


def source_files(tree: Path) -> list[str]:
    """Return the sorted paths of all files below `tree`, without directories of tools."""
    found: list[str] = []
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name not in NO_SOURCES]
        relative = PurePosixPath(Path(folder).relative_to(tree).as_posix())
        found += [str(relative / name) for name in files]
    return sorted(found)


def layout(tree: Path, project: Project) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the directories that Python imports from, and the files of the build.

    Those with most modules come first; the root, from which tests import helpers, is always one of them.

    Raises TaskError when the project installs packages under other names than their directories.
    """
    files = source_files(tree)
    places = _directories(project, files) if project.files else _default_directories(files)
    paths = tuple(dict.fromkeys((*places.values(), "")))
    return paths, _generated(project.files, places, set(files))


def _directories(project: Project, files: Iterable[str]) -> dict[str, str]:
    """Return top-level package or module -> its directory, those with most files first."""
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(file.rpartition("/")[2], []).append(file)
    votes: dict[str, Counter[str]] = {}
    modules = [name for name in project.files if name.endswith(".py")]
    for module in modules:
        counter = votes.setdefault(module.split("/")[0], Counter())
        for file in by_name.get(module.rpartition("/")[2], ()):
            if file == module or file.endswith(f"/{module}"):
                counter[file.removesuffix(module).rstrip("/")] += 1
    found = {
        top: min(counter.items(), key=lambda item: (-item[1], item[0].count("/"), item[0]))
        for top, counter in votes.items()
        if counter
    }
    if modules and not found:
        raise TaskError(
            f"{project.name} installs {modules[0]}, but no directory of the repository has that name: {IMAGE}"
        )
    return {top: place for top, (place, _) in sorted(found.items(), key=lambda item: -item[1][1])}


def _default_directories(files: Iterable[str]) -> dict[str, str]:
    """Return the directories of a tree without a distribution: `src` or `lib` with modules, and the root."""
    modules = [file.split("/") for file in files if file.endswith(".py")]
    beside = {parts[0] for parts in modules if len(parts) > 1 and parts[0] in ("src", "lib")}
    inside = {name: name for name in sorted(beside, reverse=True) if f"{name}/__init__.py" not in files}
    return {**inside, ".": ""}


def _generated(installed: Mapping[str, bytes], places: Mapping[str, str], files: set[str]) -> dict[str, str]:
    default = next(iter(places.values()), "")
    generated: dict[str, str] = {}
    for name, content in installed.items():
        place = places.get(name.split("/")[0], default)
        path = f"{place}/{name}" if place else name
        if path in files or len(content) > _GENERATED_BYTES:
            continue
        try:
            generated[path] = content.decode("utf-8")
        except UnicodeDecodeError:
            continue  # the workspace has only text
    return generated
