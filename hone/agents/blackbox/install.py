"""Install a program's tools into the folder `app` of its layer, on the machine that builds the layer.

Only here is the network used. No install script of a package runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hone.agents.blackbox.files import digest_tree, mark_executables, unpack
from hone.agents.blackbox.program import ArchiveInstall, DirectoryInstall, Install, NpmInstall, PipInstall
from hone.agents.scaffold import ScaffoldError
from hone.tasks.errors import TaskError
from hone.tasks.python.tool import run_uv

_NPM_TIMEOUT_S = 600.0
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def identify(install: Install) -> list[str]:
    """Return everything that distinguishes installations. Raises ScaffoldError if a file is missing."""
    parts = [install.model_dump_json(exclude={"lock", "requirements"})]
    file = None
    if isinstance(install, NpmInstall):
        file = install.lock
    elif isinstance(install, PipInstall):
        file = install.requirements
        parts.append(sys.version)
    elif isinstance(install, DirectoryInstall):
        if not install.source.is_dir():
            raise ScaffoldError(f"{install.source} is not a directory")
        parts.append(digest_tree(install.source, ""))
    if file is not None:
        try:
            parts.append(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ScaffoldError(f"cannot read {file}: {error}") from error
    return parts


def build(install: Install, app: Path, lock: int) -> None:
    """Fill `app`; child processes inherit the descriptor `lock`. Raises ScaffoldError."""
    if isinstance(install, NpmInstall):
        _npm(install, app, lock)
        mark_executables(app)
    elif isinstance(install, PipInstall):
        _pip(install, app, lock)
    elif isinstance(install, ArchiveInstall):
        unpack(install.source, install.sha256, app)
    else:
        shutil.copytree(install.source, app, symlinks=True, dirs_exist_ok=True)


def _npm(install: NpmInstall, app: Path, lock: int) -> None:
    manifest = {"private": True, "dependencies": {install.package: install.version}}
    (app / "package.json").write_text(json.dumps(manifest))
    if install.lock is not None:
        shutil.copyfile(install.lock, app / "package-lock.json")
        _run_npm(["ci", *_QUIET], app, lock, install)
    else:
        _run_npm(["install", "--omit=optional", *_QUIET], app, lock, install)
    installed = json.loads((app / "node_modules" / ".package-lock.json").read_text())["packages"]
    integrity = installed.get(f"node_modules/{install.package}", {}).get("integrity")
    if integrity != install.integrity:
        raise ScaffoldError(
            f"{install.package} {install.version} has the integrity {integrity}, not {install.integrity}"
        )
    if install.lock is None and len(installed) > 1:
        raise ScaffoldError(
            f"{install.package} {install.version} depends on {len(installed) - 1} other packages: name a "
            "package-lock.json as install.lock to pin their versions"
        )


def _run_npm(arguments: Sequence[str], app: Path, lock: int, install: NpmInstall) -> None:
    failure = f"{install.package} {install.version} cannot be installed"
    env = {name: value for name, value in os.environ.items() if name != "NODE_OPTIONS"}
    try:
        done = subprocess.run(
            ["npm", *arguments],
            cwd=app,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            umask=0o022,
            pass_fds=[lock],
            timeout=_NPM_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ScaffoldError(
            f"{failure}: npm is not on this machine's PATH; install Node.js with npm"
        ) from None
    except subprocess.TimeoutExpired:
        raise ScaffoldError(f"{failure}: npm did not end within {_NPM_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        errors = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if "npm error" in line]
        useful = [line for line in errors if not line.startswith(("code ", "A complete log", "errno "))]
        raise ScaffoldError(f"{failure}: npm reports {(useful or errors or [done.stderr.strip()])[0]!r}")


def _pip(install: PipInstall, app: Path, lock: int) -> None:
    command = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--link-mode", "copy", "--target", str(app), "--requirements", str(install.requirements)]
    try:
        run_uv(command, what=f"the packages in {install.requirements} cannot be installed", held=[lock])
    except TaskError as error:
        raise ScaffoldError(str(error)) from error
    (app / ".lock").unlink(missing_ok=True)
    shutil.rmtree(app / "bin", ignore_errors=True)  # these scripts name this machine's interpreter
