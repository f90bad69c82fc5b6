"""The read-only layer with a program's tools: built once per content and mounted in every sandbox.

Only the build uses the network. No install script of a package runs.

DIRECTORY/NAME-<key>/ app, bin, lib, loader ...     mounted
                      layer.json                    the digest of everything else
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hone.agents.blackbox import runtime
from hone.agents.blackbox.program import (
    ArchiveInstall,
    DirectoryInstall,
    NpmInstall,
    PipInstall,
    Program,
)
from hone.agents.blackbox.runtime import unpack
from hone.agents.scaffold import ScaffoldError
from hone.tasks.errors import TaskError
from hone.tasks.python.tool import run_uv
from hone.utils.files import build_directory, default_cache_dir, make_readable

RECORD = "layer.json"
_LAYOUT = 1  # increment when the same program gives another layer
_COMPILE_TIMEOUT_S = 600.0
_NPM_TIMEOUT_S = 600.0
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def default_layers() -> Path:
    """Return the directory of all layers: `agents` in Hone's cache."""
    return default_cache_dir() / "agents"


def prepare(program: Program, cache: Path) -> Path:
    """Return the layer of a program, built on first use, which may need the network. Blocks.

    Raises:
        ScaffoldError: the layer cannot be built, or was changed after it was built.
    """
    target = _path(program, cache)
    try:
        build_directory(target, lambda partial, lock: _build(program, partial, lock))
        unchanged = _digest_tree(target, RECORD) == _recorded(target)
    except OSError as error:
        raise ScaffoldError(f"the tools of {program.name} cannot be stored in {target}: {error}") from error
    if not unchanged:
        raise ScaffoldError(
            f"the tools in {target} were changed after they were built: remove that directory"
        )
    return target


def is_prepared(program: Program, cache: Path) -> bool:
    """Return whether the layer is built. Raises ScaffoldError when a file that goes into it is missing."""
    return _path(program, cache).is_dir()


def _recorded(layer: Path) -> str:
    """Return the digest recorded at the build; "" if it cannot be read."""
    try:
        return json.loads((layer / RECORD).read_text())["tree"]
    except (ValueError, KeyError, TypeError):
        return ""


def _path(program: Program, cache: Path) -> Path:
    """Return the path of a layer; its key covers everything that goes into the layer."""
    parts = [_LAYOUT, platform.machine(), program.name, *_identify(program)]
    parts.append(runtime.identify(program.runtime))
    return cache / f"{program.name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _build(program: Program, target: Path, lock: int) -> None:
    app = target / "app"
    app.mkdir()
    _install(program, app, lock)
    if program.runtime is not None:
        runtime.build(program.runtime, target, program.layer)
        if program.runtime.program == "python3":
            _compile(runtime.find_python(program.runtime), target, program.layer)
    make_readable(target)
    record = {"program": program.name, "tree": _digest_tree(target, RECORD)}
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    (target / RECORD).chmod(0o644)


def _compile(python: Path, target: Path, layer: str) -> None:
    """Compile Python modules; sources are not checked again, as sandboxes cannot change them."""
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", layer, "-j", "2"]
    command = [str(python), "-I", "-m", "compileall", *options, str(target)]
    # The exit code is ignored: some files are for other Python versions.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )


def _identify(program: Program) -> list[str]:
    """Return everything that distinguishes installations. Raises ScaffoldError if a file is missing."""
    install = program.install
    parts = [install.model_dump_json(exclude={"lock", "requirements"})]
    file = None
    if isinstance(install, NpmInstall):
        file = install.lock
    elif isinstance(install, PipInstall):
        file = install.requirements
        parts.append(runtime.python_version(program.runtime))
    elif isinstance(install, DirectoryInstall):
        if not install.source.is_dir():
            raise ScaffoldError(f"{install.source} is not a directory")
        parts.append(_digest_tree(install.source, ""))
    if file is not None:
        try:
            parts.append(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ScaffoldError(f"cannot read {file}: {error}") from error
    return parts


def _install(program: Program, app: Path, lock: int) -> None:
    """Fill `app`; child processes inherit the descriptor `lock`. Raises ScaffoldError."""
    install = program.install
    if isinstance(install, NpmInstall):
        _npm(install, app, lock)
        _mark_executables(app)
    elif isinstance(install, PipInstall):
        _pip(install, runtime.find_python(program.runtime), app, lock)
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


def _pip(install: PipInstall, python: Path, app: Path, lock: int) -> None:
    command = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--link-mode", "copy", "--target", str(app), "--requirements", str(install.requirements)]
    try:
        failure = f"the packages in {install.requirements} cannot be installed"
        run_uv(command, failure=failure, held=[lock], python=python)
    except TaskError as error:
        raise ScaffoldError(str(error)) from error
    (app / ".lock").unlink(missing_ok=True)
    shutil.rmtree(app / "bin", ignore_errors=True)  # these scripts name this machine's interpreter


def _mark_executables(tree: Path) -> None:
    """Make every ELF file executable: archives of some registries lose the mode."""
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    path.chmod(0o755)


def _digest_tree(tree: Path, leave_out: str) -> str:
    """Return the SHA-256 of all names, kinds, modes and contents below `tree` but the file `leave_out`."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(tree):
        folders.sort()
        for name in sorted([*files, *(one for one in folders if (Path(folder) / one).is_symlink())]):
            path = Path(folder) / name
            relative = path.relative_to(tree).as_posix()
            if relative == leave_out:
                continue
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                content = path.readlink().as_posix().encode()
            else:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            kind = "link" if stat.S_ISLNK(mode) else ("program" if mode & 0o100 else "file")
            digest.update(f"{relative}\0{kind}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
