"""The read-only layer with a program's tools: built once per content and mounted in every sandbox.

DIRECTORY/NAME-<key>/ app, bin, lib, loader ...     mounted
                      layer.json                    the digest of everything else
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

from hone.agents.blackbox import install, runtime
from hone.agents.blackbox.files import digest_tree
from hone.agents.blackbox.program import Program
from hone.agents.scaffold import ScaffoldError
from hone.utils.files import build_directory, default_cache_dir, make_readable

RECORD = "layer.json"
_LAYOUT = 1  # increment when the same program gives another layer
_COMPILE_TIMEOUT_S = 600.0


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
        unchanged = digest_tree(target, RECORD) == _recorded(target)
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
    parts = [_LAYOUT, platform.machine(), program.name, *install.identify(program.install)]
    parts.append(runtime.identify(program.runtime))
    return cache / f"{program.name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _build(program: Program, target: Path, lock: int) -> None:
    app = target / "app"
    app.mkdir()
    install.build(program.install, app, lock)
    if program.runtime is not None:
        runtime.build(program.runtime, target, program.layer)
        if program.runtime.program == "python3":
            _compile(target, program.layer)
    make_readable(target)
    record = {"program": program.name, "tree": digest_tree(target, RECORD)}
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    (target / RECORD).chmod(0o644)


def _compile(target: Path, layer: str) -> None:
    """Compile Python modules; sources are not checked again, as sandboxes cannot change them."""
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", layer, "-j", "2"]
    command = [sys.executable, "-I", "-m", "compileall", *options, str(target)]
    # The exit code is ignored: some files are for other Python versions.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
