"""Bundle process 1 of sandboxes with its own interpreter: one directory that runs in any root file system.

It holds the dynamic loader, libraries, a few standard modules and the compiled modules of `in_sandbox`, all
copied from the running interpreter and started through that loader. So an image needs no Python, and may have
another or older C library. Built once per interpreter into the cache; mounted read-only at BUNDLE_TARGET.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

from hone.sandbox import seccomp
from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.init import in_sandbox
from hone.utils import processes
from hone.utils.files import build_directory, make_readable

BUNDLE_TARGET = "/opt/hone/init"

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# `modules` holds, marshalled: {name: code} of the package `in_sandbox`, {name: file} of extension modules,
# the seccomp programs of process 1.
_MAIN = (
    f"import marshal, posix; file = posix.open('{BUNDLE_TARGET}/modules', posix.O_RDONLY | posix.O_CLOEXEC); "
    "modules, extensions, programs = marshal.loads(posix.read(file, 1 << 20)); "
    "exec(modules['in_sandbox.start']); main(modules, extensions, programs)"
)
_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH  # no stat of sources, which are not there
# Print the modules that process 1 loads on a bare interpreter: {name: file}.
_PROBE = """
import sys
sys.path.append(sys.argv[1])
import in_sandbox.init, in_sandbox.relay, in_sandbox.sockets
modules = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
import json
print(json.dumps(modules))
"""
_LIBRARY_LINE = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)


def command(*arguments: str) -> list[str]:
    """Return the command line of process 1 with these arguments."""
    return [
        *(f"{BUNDLE_TARGET}/loader", "--library-path", f"{BUNDLE_TARGET}/lib"),
        *(f"{BUNDLE_TARGET}/python/bin/{_VERSION}", "-I", "-S", "-X", "utf8", "-c", _MAIN, *arguments),
    ]


def forward_port_command(port: int, path: str) -> list[str]:
    """Return the command that forwards a port of a sandbox's own loopback to a unix socket inside it.

    Run it with `Sandbox.exec`, in any image: it ends when the port listens, and leaves a relay running.
    """
    return command("forward", str(port), path)


def prepare(cache_dir: Path) -> Path:
    """Return the bundle's directory, built on first use, to be mounted read-only at BUNDLE_TARGET.

    Raises ProviderUnavailable when it cannot be built.
    """
    executable = Path(sys.executable).resolve()
    info = executable.stat()
    texts = map(Path.read_text, [Path(__file__), Path(seccomp.__file__), *_sources()])
    key = json.dumps([sys.version, str(executable), info.st_size, info.st_mtime_ns, *texts])
    target = cache_dir / f"init-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return build_directory(target, lambda partial, _: _build(partial, executable))


def _compile_modules() -> dict[str, CodeType]:
    names = {source: f"in_sandbox.{source.stem}".removesuffix(".__init__") for source in _sources()}
    return {
        name: compile(source.read_text(), source.name, "exec", dont_inherit=True, optimize=2)
        for source, name in names.items()
    }


def _sources() -> list[Path]:
    return [*sorted(Path(in_sandbox.__file__).parent.glob("*.py")), Path(processes.__file__)]


def _build(target: Path, executable: Path) -> None:
    library = target / "python" / "lib" / _VERSION
    (library / "lib-dynload").mkdir(parents=True)
    python = target / "python" / "bin" / _VERSION
    python.parent.mkdir()
    shutil.copyfile(executable, python)
    python.chmod(0o755)
    extensions: dict[str, Path] = {}
    for name, file in _loaded_modules(executable).items():
        source = Path(file)
        if name.startswith("in_sandbox") or name == "os.path" or not file:
            continue
        if source.suffix == ".so":
            extensions[name] = source
            shutil.copyfile(source, library / "lib-dynload" / source.name)
        else:
            relative = name.replace(".", "/") + ("/__init__" if source.stem == "__init__" else "")
            compiled = library / f"{relative}.pyc"
            py_compile.compile(file, str(compiled), f"{name}.py", doraise=True, invalidation_mode=_UNCHECKED)
    shown = f"{BUNDLE_TARGET}/{(library / 'lib-dynload').relative_to(target)}"
    files = {name: f"{shown}/{source.name}" for name, source in extensions.items()}
    programs = (seccomp.init_program(), seccomp.init_program(notify_sockets=True))
    (target / "modules").write_bytes(marshal.dumps((_compile_modules(), files, programs)))
    copy_libraries(target, [executable, *extensions.values()])
    make_readable(target)


def _loaded_modules(executable: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "in_sandbox").mkdir()
        for source in _sources():
            shutil.copy(source, Path(directory) / "in_sandbox")
        probe = [str(executable), "-I", "-S", "-B", "-c", _PROBE, directory]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ProviderUnavailable(
            f"the interpreter {executable} cannot load process 1 of sandboxes: {done.stderr.strip()[-300:]}",
            retryable=False,
        )
    modules: dict[str, str] = json.loads(done.stdout)
    # the interpreter looks for `os` to find its library, and loads it frozen
    return modules | {"os": os.__file__}


def copy_libraries(target: Path, programs: Sequence[Path]) -> None:
    """Copy the dynamic loader to `loader` and every shared library that the programs need into `lib`.

    Raises ProviderUnavailable when they cannot be found.
    """
    needed: dict[str, str] = {}
    loader = ""
    for program in programs:
        environment = {"LD_TRACE_LOADED_OBJECTS": "1"}  # the loader answers, and names itself
        command = [loader, "--list", str(program)] if loader else [str(program)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        for name, path in _LIBRARY_LINE.findall(done.stdout):
            if name:
                needed[name] = path
            elif "/ld-" in path:
                loader = path
    if not loader or not needed:
        raise ProviderUnavailable(
            f"cannot find the dynamic loader of {programs[0]}, which sandboxes need", retryable=False
        )
    (target / "lib").mkdir()
    for name, path in needed.items():
        shutil.copyfile(path, target / "lib" / name)
    shutil.copyfile(loader, target / "loader")
    (target / "loader").chmod(0o755)
