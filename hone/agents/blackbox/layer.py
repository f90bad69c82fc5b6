"""The read-only layer of a program: built once per content, shown in every sandbox, never installed in one.

DIRECTORY/NAME-<key>/ app, bin, lib, loader ...     what is shown
                      layer.json                    the digest of all that
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from hone.agents.blackbox import install, runtime
from hone.agents.blackbox.files import digest_tree, open_to_all
from hone.agents.blackbox.program import DirectoryInstall, Program
from hone.agents.scaffold import ScaffoldError
from hone.utils.files import default_cache_dir

RECORD = "layer.json"
_LAYOUT = 1  # raised when the same program gives another layer
_COMPILE_S = 600.0


def default_layers() -> Path:
    """Where layers are kept between runs: `agents` in Hone's cache."""
    return default_cache_dir() / "agents"


def prepare(program: Program, cache: Path) -> Path:
    """The directory to show at `program.layer`, built on first use.

    It is complete or absent whatever kills the builder; other processes wait for it. It is found by what goes
    into it and checked against its record. Blocks; needs the network where it has to be built.

    Raises ScaffoldError: it cannot be built, or was changed since.
    """
    target = cache / f"{program.name}-{_key(program)}"
    try:
        if not target.is_dir():
            _build_once(program, cache, target)
        unchanged = digest_tree(target, RECORD) == _recorded(target)
    except OSError as error:
        raise ScaffoldError(f"the tools of {program.name} cannot be kept in {target}: {error}") from error
    if not unchanged:
        raise ScaffoldError(
            f"the tools in {target} were changed since they were built: remove that directory"
        )
    return target


def is_prepared(program: Program, cache: Path) -> bool:
    """Whether its layer is there. Raises ScaffoldError where what it is made of is not."""
    return (cache / f"{program.name}-{_key(program)}").is_dir()


def _recorded(layer: Path) -> str:
    """The digest that was written when the layer was built; "" where it cannot be read."""
    try:
        return json.loads((layer / RECORD).read_text())["tree"]
    except (ValueError, KeyError, TypeError):
        return ""


def _key(program: Program) -> str:
    """Of everything that goes into the layer; its name goes into the paths inside."""
    said = [_LAYOUT, platform.machine(), program.name, *install.identify(program.install)]
    said += [runtime.identify(program.runtime)]
    if isinstance(program.install, DirectoryInstall):
        if not program.install.source.is_dir():
            raise ScaffoldError(f"{program.install.source} is not a directory")
        said += [digest_tree(program.install.source, "")]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _build_once(program: Program, cache: Path, target: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel when its holders die
        if target.is_dir():
            return
        partial = cache / f".{target.name}.partial"  # whatever it holds now, its builder is dead
        scratch = cache / f".{target.name}.scratch"
        for folder in (partial, scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        try:
            _build(program, partial, scratch, lock.fileno())
            partial.rename(target)
        finally:
            for folder in (partial, scratch):
                shutil.rmtree(folder, ignore_errors=True)


def _build(program: Program, target: Path, scratch: Path, lock: int) -> None:
    app = target / "app"
    app.mkdir()
    install.build(program.install, app, [lock])
    if program.runtime is not None:
        runtime.build(program.runtime, target, scratch, program.layer)
        if program.runtime.program == "python3":
            _compile(target, program.layer)
    open_to_all(target)
    record = {"program": program.name, "tree": digest_tree(target, RECORD)}
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    (target / RECORD).chmod(0o644)


def _compile(target: Path, layer: str) -> None:
    """Python's modules, without looking at sources again: nothing in a sandbox can change them."""
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", layer, "-j", "2"]
    command = [sys.executable, "-I", "-m", "compileall", *options, str(target)]
    with contextlib.suppress(subprocess.TimeoutExpired):  # its exit code: some file is for another Python
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_S, check=False
        )
