"""Installation of a repository's requirements into a directory, once."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.formats import digest
from hone.tasks.python.tool import TIMEOUT_S, run_uv
from hone.types import Environment
from hone.utils.files import build_directory, make_readable

SITE_TARGET = "/srv/hone/site"  # where sandboxes mount the directory

_LAYOUT = 2  # version of the layout; a new number rebuilds all directories
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_SHADOWING = ("test", "tests")  # installed by mistake by some packages; they would hide the repository's own


def install(environment: Environment, cache: Path) -> Path | None:
    """Return the directory with the installed distributions, for SITE_TARGET; None when nothing is required.

    It has exactly `environment.requirements`, byte-compiled, and metadata of `environment.distribution` for
    importlib.metadata. Every user can read it. It is built once, by `build_directory`; the build blocks and
    needs the package index.

    Raises TaskError when a requirement is not pinned, does not exist, or cannot be built.
    """
    if not environment.requirements and not environment.distribution:
        return None
    for pin in filter(None, (*environment.requirements, environment.distribution)):
        if not _PIN.fullmatch(pin):
            raise TaskError(f"{pin!r} is not a pinned requirement: write name==version")
    own = canonicalize_name(environment.distribution.partition("==")[0])
    if any(canonicalize_name(pin.partition("==")[0]) == own for pin in environment.requirements):
        raise TaskError(f"{own} is among its own requirements: a release of it would be imported instead")
    try:
        return build_directory(
            cache / f"site-{_name(environment)}", lambda partial, lock: _make(environment, partial, lock)
        )
    except OSError as error:
        raise TaskError(f"cannot install the repository's requirements below {cache}: {error}") from error


def _name(environment: Environment) -> str:
    python = [platform.python_version(), sys.implementation.cache_tag, sysconfig.get_platform()]
    return digest([_LAYOUT, python, sorted(environment.requirements), environment.distribution])


def _make(environment: Environment, site: Path, lock: int) -> None:
    if environment.requirements:
        wanted = site / "requirements.txt"
        wanted.write_text("".join(f"{pin}\n" for pin in sorted(environment.requirements)))
        # copied: with links, a writer to uv's cache would change this directory
        command = ["pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--target", str(site)]
        # uv inherits the lock: if this process is killed, the next build waits until uv exits
        what = "the repository's requirements cannot be installed"
        run_uv([*command, "--requirements", str(wanted)], what=what, held=[lock])
        wanted.unlink()
        (site / ".lock").unlink(missing_ok=True)
    for name in _SHADOWING:
        shutil.rmtree(site / name, ignore_errors=True)
    for script in (site / "bin").glob("*"):
        _use_any_python(script)
    _compile(site)
    if environment.distribution:
        _record(environment.distribution, site)
    make_readable(site)


def _use_any_python(script: Path) -> None:
    """Make a script use the Python of the sandbox instead of the host's path."""
    content = script.read_bytes()
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        script.write_bytes(b"#!/usr/bin/env python3" + newline + rest)


def _compile(site: Path) -> None:
    """Byte-compile without later checks of the sources: a sandbox cannot change them."""
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(site), "-p", SITE_TARGET]
    command = [sys.executable, "-I", "-m", "compileall", *options, str(site)]
    try:  # the exit code is ignored: some files may be for another Python
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TaskError(f"the repository's requirements were not compiled within {TIMEOUT_S} s") from None


def _record(distribution: str, site: Path) -> None:
    """Write metadata, so that importlib.metadata finds a distribution that is imported from its sources."""
    name, _, version = distribution.partition("==")
    folder = site / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "INSTALLER").write_text("hone\n")
    files = ("METADATA", "INSTALLER", "RECORD")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in files))
