"""Compiled extensions of a repository: whether it has some, and their build in its own tree."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.tasks.python.interpreters import Interpreter

BUILD = "python setup.py build_ext --inplace"
SOURCES = (
    ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".pyx", ".pxd", ".pxi", ".tp", ".f", ".f90", ".pyf",
    ".src",
)  # fmt: skip
"""Endings of files from which extensions are compiled."""
LIBRARIES = (".so", ".pyd")
_DECLARED = re.compile(
    r"\b(?:ext_modules|rust_extensions)\s*=\s*(?!\[\s*\])\S"
    r"|\b(?:Extension|cythonize|get_extensions|get_package_info)\(|\bnumpy\.distutils\b"
)
_ERROR = re.compile(r"(?:^|\s|:)(?:fatal )?error:|^\w*Error\b", re.IGNORECASE)
_TIMEOUT_S = 3600.0  # of the first build, of all extensions
_COMPILERS = ("cc", "gcc", "clang")


def has_extensions(tree: Path) -> bool:
    """Return whether the setup.py of a tree declares compiled extensions."""
    setup = tree / "setup.py"
    return setup.is_file() and declares_extensions(setup.read_text("utf-8", "replace"))


def declares_extensions(setup: str) -> bool:
    """Return whether the text of a setup.py declares compiled extensions."""
    return _DECLARED.search(setup) is not None


def check_compiler() -> None:
    """Raise TaskError where this machine has no compiler."""
    if not any(map(shutil.which, _COMPILERS)):
        raise TaskError("it has compiled extensions, and this machine has no C compiler: install gcc")


def build_in_place(tree: Path, command: str, interpreter: Interpreter, site: Path | None, paths: str) -> None:
    """Compile the extensions of a tree in the tree. That runs code of the repository. Blocks.

    Args:
        command: of bash, with `python` for the interpreter.
        site: directory of installed distributions, which has what the build requires.
        paths: of directories that Python imports from, joined by colons.
    Raises:
        TaskError: there is no compiler, the build fails or takes more than an hour.
    """
    check_compiler()
    with tempfile.TemporaryDirectory(prefix="hone-build-") as home:
        binaries = Path(home) / "bin"
        binaries.mkdir()
        for name in ("python", "python3"):
            (binaries / name).symlink_to(interpreter.path)
        places = [binaries, *([site / "bin"] if site else []), "/usr/local/bin", "/usr/bin", "/bin"]
        env = {
            "PATH": ":".join(map(str, places)),
            "PYTHONPATH": ":".join(filter(None, [paths, str(site) if site else ""])),
            "HOME": home,
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=tree,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0o022,
            start_new_session=True,
        )
        with process:
            try:
                out, _ = process.communicate(timeout=_TIMEOUT_S)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TaskError(f"its extensions were not compiled within {_TIMEOUT_S:g} s") from None
                raise
    if process.returncode:
        raise TaskError(f"its extensions cannot be compiled: {_last_error(out.decode('utf-8', 'replace'))}")
    shutil.rmtree(tree / "build", ignore_errors=True)


def _last_error(output: str) -> str:
    """Return the most telling line of a failed build."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return ([line for line in lines if _ERROR.search(line)] or lines)[-1][:300]
