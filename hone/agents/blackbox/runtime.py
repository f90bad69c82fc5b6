"""An interpreter of this machine made portable: it runs in any root file system with the same kernel.

    bin/PROGRAM       a script: the loader, the libraries, the program
    libexec/PROGRAM   the program itself          (Python: python/bin, beside its standard library)
    lib, loader       every shared library, the C library too, and the dynamic loader

So an image needs neither the interpreter nor a C library that fits it, and what the program starts sees no
variable of ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from hone.agents.blackbox.files import unpack
from hone.agents.blackbox.program import Runtime
from hone.agents.scaffold import ScaffoldError
from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.init.bundle import copy_libraries

_ASK_S = 60.0
_WRAPPER = """#!/bin/sh
exec {layer}/loader --library-path {layer}/lib {layer}/{program} {arguments} "$@"
"""
# Node takes /proc/self/exe, the loader, for itself, and starts that as its children.
_OWN_PATH = "process.execPath = process.argv[0] = '{layer}/bin/node';\n"
_OWN_SITE = "import site\nsite.addsitedir('{layer}/app')\n"
_NOT_NEEDED = {
    "__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "site-packages", "dist-packages", "test",
    "tests", "tkinter", "turtledemo",
}  # fmt: skip


def identify(runtime: Runtime | None) -> str:
    """What tells one build of the interpreter from another. Raises ScaffoldError where it is not here."""
    if runtime is None:
        return ""
    if runtime.archive:
        return runtime.sha256
    path = _find(runtime)
    info = path.stat()
    return f"{path} {info.st_size} {info.st_mtime_ns} {sys.version if runtime.program == 'python3' else ''}"


def build(runtime: Runtime, target: Path, scratch: Path, layer: str) -> None:
    """Put the interpreter into `target`, which will be shown as `layer`. Raises ScaffoldError."""
    if runtime.archive:
        unpack(runtime.archive, runtime.sha256, scratch)
        found = sorted(scratch.glob("bin/node")) + sorted(scratch.glob("*/bin/node"))
        if not found:
            raise ScaffoldError(f"{runtime.archive} holds no bin/node")
        program = found[0]
    else:
        program = _find(runtime)
    _require_version(runtime, program)
    build_one = _build_node if runtime.program == "node" else _build_python
    (target / "bin").mkdir()
    try:
        build_one(program, target, layer)
    except ProviderUnavailable as error:
        raise ScaffoldError(str(error)) from error


def _find(runtime: Runtime) -> Path:
    if runtime.program == "python3":
        return Path(sys.executable).resolve()
    found = shutil.which("node")
    if found is None:
        raise ScaffoldError(
            "node is not on this machine's PATH: install Node.js, or name an archive of it in the program's "
            "[runtime]"
        )
    return Path(found).resolve()


def _require_version(runtime: Runtime, program: Path) -> None:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_ASK_S).stdout
    found = re.search(r"\d+(\.\d+)*", said)
    if found is None:
        raise ScaffoldError(f"{program} does not tell its version: {said.strip()!r}")
    if runtime.version and _numbers(found.group()) < _numbers(runtime.version):
        raise ScaffoldError(
            f"{program} is {runtime.program} {found.group()}, and {runtime.version} or newer is needed: "
            "install one, and let it be the first on PATH"
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
    """Its standard library lies beside it, where it looks; `app` is its only other place of modules."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = target / "python" / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*_NOT_NEEDED))
    extensions = library / "lib-dynload"
    if not extensions.is_dir():
        platform = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
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
