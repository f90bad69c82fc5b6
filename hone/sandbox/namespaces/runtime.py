"""Python of image `host`: the running interpreter, and a virtual environment with pytest.

Nothing is installed per sandbox. The environment is copied once from the running one into the cache and
compiled with unchecked hashes (no stat of sources).
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import json
import platform
import py_compile
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.init.bundle import build_readable

PYTHON_TARGET = "/opt/hone/python"
RUNTIME_TARGET = "/opt/hone/venv"

_PYTEST_COMMAND = """#!{bin}/python3
import sys
from pytest import console_main
sys.exit(console_main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    directory: Path  # the virtual environment, mounted at RUNTIME_TARGET
    python_prefix: Path | None  # mounted at PYTHON_TARGET; None for the system's Python
    library: str | None  # file name of its shared libpython


def prepare(cache_dir: Path) -> Runtime:
    """Return the runtime, built on first use. Raises ProviderUnavailable when pytest is missing."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = None if sys.base_prefix == "/usr" else Path(sys.base_prefix)
    home = f"{PYTHON_TARGET}/bin" if prefix else "/usr/bin"
    distributions = _closure("pytest")
    key = json.dumps([platform.python_version(), sys.base_prefix, home, sorted(distributions)])
    target = cache_dir / f"runtime-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    directory = build_readable(target, lambda partial: _build(partial, version, home, distributions))
    shared = prefix is not None and sysconfig.get_config_var("Py_ENABLE_SHARED")
    library = str(sysconfig.get_config_var("INSTSONAME")) if shared else None
    return Runtime(directory=directory, python_prefix=prefix, library=library)


def _closure(name: str) -> dict[str, importlib.metadata.Distribution]:
    """Return {name==version: distribution} of a package and all its requirements on this machine."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        try:
            distribution = importlib.metadata.distribution(waiting.pop())
        except importlib.metadata.PackageNotFoundError as error:
            raise ProviderUnavailable(
                f"{error.name}, which sandboxes need, is not installed beside Hone; run: pip install pytest",
                retryable=False,
            ) from error
        key = f"{distribution.name}=={distribution.version}"
        if key not in found:
            found[key] = distribution
            requirements = [Requirement(line) for line in distribution.requires or ()]
            waiting += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def _build(
    directory: Path,
    version: str,
    home: str,
    distributions: dict[str, importlib.metadata.Distribution],
) -> None:
    site = directory / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    for distribution in distributions.values():
        for file in distribution.files or ():
            if ".." in file.parts or "__pycache__" in file.parts or file.is_absolute():
                continue
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    shown = f"{RUNTIME_TARGET}/lib/{version}/site-packages"
    compileall.compile_dir(site, quiet=2, invalidation_mode=mode, stripdir=str(site), prependdir=shown)
    (directory / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    binaries = directory / "bin"
    binaries.mkdir()
    for name in ("python", "python3", version):
        (binaries / name).symlink_to(f"{home}/{version}")
    for name in ("pytest", "py.test"):
        (binaries / name).write_text(_PYTEST_COMMAND.format(bin=f"{RUNTIME_TARGET}/bin"))
        (binaries / name).chmod(0o755)
