"""The tools of a program, put into the folder `app` of its layer.

Only here is the network used, on the machine that builds the layer; no script of a package runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hone.agents.blackbox.files import mark_programs, unpack
from hone.agents.blackbox.program import ArchiveInstall, DirectoryInstall, Install, NpmInstall, PipInstall
from hone.agents.scaffold import ScaffoldError
from hone.tasks.errors import TaskError
from hone.tasks.python.tool import run_uv

_TIMEOUT_S = 600.0  # of npm
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def identify(install: Install) -> list[str]:
    """What tells one installation from another. Raises ScaffoldError where a file of it is missing."""
    files = {NpmInstall: "lock", PipInstall: "requirements"}
    named = getattr(install, files.get(type(install), ""), None)
    said = [install.model_dump_json(exclude={"lock", "requirements"})]
    if named is not None:
        try:
            said.append(named.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ScaffoldError(f"cannot read {named}: {error}") from error
    if isinstance(install, PipInstall):
        said.append(sys.version)
    return said


def build(install: Install, app: Path, held: Sequence[int]) -> None:
    """Fill `app`; children keep the file descriptors `held` open. Raises ScaffoldError."""
    if isinstance(install, NpmInstall):
        _npm(install, app, held)
        mark_programs(app)
    elif isinstance(install, PipInstall):
        _pip(install, app, held)
    elif isinstance(install, ArchiveInstall):
        unpack(install.source, install.sha256, app)
    else:
        _copy(install, app)


def _npm(install: NpmInstall, app: Path, held: Sequence[int]) -> None:
    wanted = {"private": True, "dependencies": {install.package: install.version}}
    (app / "package.json").write_text(json.dumps(wanted))
    if install.lock is not None:
        shutil.copyfile(install.lock, app / "package-lock.json")
        _run_npm(["ci", *_QUIET], app, held, install)
    else:
        _run_npm(["install", "--omit=optional", *_QUIET], app, held, install)
    listed = json.loads((app / "node_modules" / ".package-lock.json").read_text())["packages"]
    found = listed.get(f"node_modules/{install.package}", {}).get("integrity")
    if found != install.integrity:
        raise ScaffoldError(
            f"{install.package} {install.version} has the integrity {found}, and not {install.integrity}"
        )
    if install.lock is None and len(listed) > 1:
        raise ScaffoldError(
            f"{install.package} {install.version} depends on {len(listed) - 1} other packages: name a "
            "package-lock.json as install.lock, so that they are always the same"
        )


def _run_npm(arguments: Sequence[str], app: Path, held: Sequence[int], install: NpmInstall) -> None:
    what = f"{install.package} {install.version} cannot be installed"
    env = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    try:
        process = subprocess.Popen(
            ["npm", *arguments],
            cwd=app,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            umask=0o022,
            pass_fds=held,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ScaffoldError(f"{what}: npm is not on this machine's PATH; install Node.js with npm") from None
    with process:
        try:
            _, said = process.communicate(timeout=_TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ScaffoldError(f"{what}: npm was not done after {_TIMEOUT_S:.0f} s") from None
            raise
    if process.returncode != 0:
        errors = [line.removeprefix("npm error ") for line in said.splitlines() if "npm error" in line]
        told = [line for line in errors if not line.startswith(("code ", "A complete log", "errno "))]
        raise ScaffoldError(f"{what}: npm says {(told or errors or [said.strip()])[0]!r}")


def _pip(install: PipInstall, app: Path, held: Sequence[int]) -> None:
    command = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--link-mode", "copy", "--target", str(app), "--requirements", str(install.requirements)]
    try:
        run_uv(command, what=f"the packages in {install.requirements} cannot be installed", held=held)
    except TaskError as error:
        raise ScaffoldError(str(error)) from error
    (app / ".lock").unlink(missing_ok=True)
    shutil.rmtree(app / "bin", ignore_errors=True)  # they name this machine's interpreter


def _copy(install: DirectoryInstall, app: Path) -> None:
    if not install.source.is_dir():
        raise ScaffoldError(f"{install.source} is not a directory")
    shutil.copytree(install.source, app, symlinks=True, dirs_exist_ok=True)
