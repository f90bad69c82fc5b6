"""Make an interpreter of this machine portable, and unpack archives with a known digest.

The interpreter runs in any root file system with the same kernel:

    bin/PROGRAM       a script that starts the program by the loader, with the libraries
    libexec/PROGRAM   the program itself          (Python: python/bin, next to its standard library)
    lib, loader       every shared library, the C library too, and the dynamic loader

An image then needs neither the interpreter nor a compatible C library, and child processes inherit no
variable of Hone's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from hone.agents.blackbox.program import Runtime
from hone.agents.scaffold import ScaffoldError
from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.init.bundle import copy_libraries
from hone.tasks.errors import TaskError
from hone.tasks.python.interpreters import find_interpreter

_VERSION_TIMEOUT_S = 60.0
_WRAPPER = """#!/bin/sh
exec {layer}/loader --library-path {layer}/lib {layer}/{program} {arguments} "$@"
"""
# Node starts its children by /proc/self/exe, which is the loader.
_OWN_PATH = "process.execPath = process.argv[0] = '{layer}/bin/node';\n"
# Prints the version of a Python, and the directories of its standard library.
_FACTS = """
import json, sys, sysconfig
print(json.dumps([sys.version, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]))
"""
_OWN_SITE = "import site\nsite.addsitedir('{layer}/app')\n"
_OMITTED = {
    "__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "site-packages", "dist-packages", "test",
    "tests", "tkinter", "turtledemo",
}  # fmt: skip
ARCHIVE_MAX = 2 << 30  # bytes
_READ_TIMEOUT_S = 60.0


def identify(runtime: Runtime | None) -> str:
    """Return a text that distinguishes interpreters. Raises ScaffoldError if the interpreter is missing."""
    if runtime is None:
        return ""
    if runtime.archive:
        return runtime.sha256
    path = _find(runtime)
    info = path.stat()
    version = python_version(runtime) if runtime.program == "python3" else ""
    return f"{path} {info.st_size} {info.st_mtime_ns} {version}"


def build(runtime: Runtime, target: Path, layer: str) -> None:
    """Put the interpreter into `target`, which will be mounted at `layer`. Raises ScaffoldError."""
    unpacked = target / ".unpacked"
    if runtime.archive:
        unpack(runtime.archive, runtime.sha256, unpacked)
        found = sorted(unpacked.glob("bin/node")) + sorted(unpacked.glob("*/bin/node"))
        if not found:
            raise ScaffoldError(f"{runtime.archive} holds no bin/node")
        program = found[0]
    else:
        program = _find(runtime)
    _check_version(runtime, program)
    (target / "bin").mkdir()
    try:
        if runtime.program == "node":
            _build_node(program, target, layer)
        else:
            _build_python(program, target, layer)
    except ProviderUnavailable as error:
        raise ScaffoldError(str(error)) from error
    shutil.rmtree(unpacked, ignore_errors=True)


def find_python(runtime: Runtime | None) -> Path:
    """Return the Python that runs Hone, or one of a newer `runtime.version`. Raises ScaffoldError."""
    wanted = runtime.version if runtime is not None and runtime.program == "python3" else ""
    if not wanted or _numbers(wanted) <= list(sys.version_info[:3]):
        return Path(sys.executable).resolve()
    try:
        return find_interpreter(wanted).path.resolve()
    except TaskError as error:
        raise ScaffoldError(f"the tools cannot be installed: {error}") from error


def python_version(runtime: Runtime | None) -> str:
    """Return the version of `find_python`, with its compiler. Raises ScaffoldError."""
    return _python_facts(find_python(runtime))[0]


@functools.cache
def _python_facts(python: Path) -> tuple[str, Path, Path]:
    """Return the version of a Python, and the directories of its modules and of its extensions."""
    output = subprocess.run(
        [python, "-I", "-c", _FACTS], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
    ).stdout
    version, library, extensions = json.loads(output)
    return version, Path(library), Path(extensions) / "lib-dynload"


def _find(runtime: Runtime) -> Path:
    if runtime.program == "python3":
        return find_python(runtime)
    found = shutil.which("node")
    if found is None:
        raise ScaffoldError(
            "node is not on this machine's PATH: install Node.js, or name an archive of it in the program's "
            "[runtime]"
        )
    return Path(found).resolve()


def _check_version(runtime: Runtime, program: Path) -> None:
    output = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
    ).stdout
    found = re.search(r"\d+(\.\d+)*", output)
    if found is None:
        raise ScaffoldError(f"{program} --version prints no version: {output.strip()!r}")
    if runtime.version and _numbers(found.group()) < _numbers(runtime.version):
        raise ScaffoldError(
            f"{program} is {runtime.program} {found.group()}, but {runtime.version} or newer is needed: "
            "install it and put it first on PATH"
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _build_node(program: Path, target: Path, layer: str) -> None:
    (target / "libexec").mkdir()
    _copy_program(program, target / "libexec" / "node")
    copy_libraries(target, [program])
    (target / "libexec" / "path.cjs").write_text(_OWN_PATH.format(layer=layer))
    _write_wrapper(target / "bin" / "node", layer, "libexec/node", f"-r {layer}/libexec/path.cjs")


def _build_python(program: Path, target: Path, layer: str) -> None:
    """Copy the standard library next to the program; `app` is its only other source of modules."""
    _, modules, platform = _python_facts(program)
    version = modules.name  # such as python3.11
    library = target / "python" / "lib" / version
    shutil.copytree(modules, library, ignore=shutil.ignore_patterns(*_OMITTED))
    extensions = library / "lib-dynload"
    if not extensions.is_dir():
        shutil.copytree(platform, extensions)
    (library / "sitecustomize.py").unlink(missing_ok=True)
    (library / "sitecustomize.py").write_text(_OWN_SITE.format(layer=layer))
    (target / "python" / "bin").mkdir()
    _copy_program(program, target / "python" / "bin" / version)
    wheels = sorted((target / "app").rglob("*.so*"))
    copy_libraries(target, [program, *sorted(extensions.glob("*.so")), *wheels])
    _write_wrapper(target / "bin" / "python3", layer, f"python/bin/{version}", "-I -X utf8")


def _copy_program(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _write_wrapper(path: Path, layer: str, program: str, arguments: str) -> None:
    path.write_text(_WRAPPER.format(layer=layer, program=program, arguments=arguments))
    path.chmod(0o755)


def unpack(source: str, sha256: str, target: Path) -> None:
    """Unpack a tar archive, from an https:// address or a path, into `target` after checking its digest.

    Raises:
        ScaffoldError: it cannot be read, has another digest, or holds a path or link that leaves `target`.
    """
    with tempfile.TemporaryFile() as file:
        digest = hashlib.sha256()
        size = 0
        try:
            for piece in _pieces(source):
                size += len(piece)
                if size > ARCHIVE_MAX:
                    raise ScaffoldError(f"{source} has more than {ARCHIVE_MAX >> 30} GiB")
                digest.update(piece)
                file.write(piece)
        except (OSError, httpx.HTTPError) as error:
            raise ScaffoldError(f"cannot read {source}: {error}") from error
        if digest.hexdigest() != sha256:
            raise ScaffoldError(f"{source} has the digest {digest.hexdigest()}, not {sha256}")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as archive:
                archive.extractall(target, filter="data")
        except tarfile.TarError as error:
            raise ScaffoldError(f"{source} cannot be unpacked: {error}") from error


def _pieces(source: str) -> Iterator[bytes]:
    if not source.startswith("https://"):
        with Path(source).open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece
        return
    with httpx.stream("GET", source, follow_redirects=True, timeout=_READ_TIMEOUT_S) as answer:
        answer.raise_for_status()
        yield from answer.iter_bytes(1 << 20)
