"""Python interpreters of this machine, and environments with the pytest of their day."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import filelock
import pytest

from hone.utils.files import default_cache_dir


@cache
def find_python(version: str) -> Path | None:
    """Return the interpreter of a version such as "3.6": one of pyenv, of uv, or on PATH."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable).resolve()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for place in (pyenv, Path.home() / ".local/share/uv/python"):
        found = sorted(place.glob(f"*{version}.*/bin/python{version}"))
        if found:
            return found[-1].resolve()
    on_path = shutil.which(f"python{version}")
    return None if on_path is None else Path(on_path).resolve()


def environment(python: str, requirements: tuple[str, ...], folder: Path) -> Path:
    """Return a virtual environment, made on first use; skips the test where the interpreter is missing."""
    interpreter = find_python(python)
    if interpreter is None:
        pytest.skip(f"there is no Python {python} on this machine")
    target = folder / "-".join((python, *requirements)).replace("==", "-")
    with filelock.FileLock(f"{target}.lock"):
        if not (target / "compiled").is_file():
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run([interpreter, "-m", "venv", "--without-pip", target], check=True)
            site = target / "lib" / f"python{python}" / "site-packages"
            # uv installs for interpreters that it cannot run, such as 3.6
            command = ["uv", "pip", "install", "--quiet", "--python-version", python, "--target", site]
            uv = Path(sys.executable).parent / "uv"
            subprocess.run([uv, *command[1:], *requirements], check=True)
            # sandboxes mount it read-only, where each start of pytest would compile all of its modules
            subprocess.run([interpreter, "-I", "-m", "compileall", "-q", site], capture_output=True)
            (target / "compiled").touch()
    return target


def shared_environment(python: str, *requirements: str) -> Path:
    """Return an environment that all sessions share."""
    folder = default_cache_dir() / "test-environments"
    folder.mkdir(parents=True, exist_ok=True)
    return environment(python, requirements, folder)
