"""Base of image `host`: the host's system directories, a minimal /etc, and Hone's Python with pytest.

Nothing is installed per sandbox. The virtual environment is copied once from the running one into the cache
and compiled with unchecked hashes (no stat of sources).
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import json
import os
import platform
import posixpath
import py_compile
import shutil
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from hone.sandbox.contract import DEFAULT_WORKDIR, ProviderUnavailable
from hone.sandbox.namespaces.plan import Base, Overlay
from hone.utils.files import build_directory, make_readable

UID = 1000  # of user `agent` inside
HOME = "/home/agent"

PYTHON_TARGET = "/opt/hone/python"
RUNTIME_TARGET = "/opt/hone/venv"
_PATH = f"{RUNTIME_TARGET}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORIES = (
    "etc", "usr", "proc", "dev", "sys", "tmp", "run", "run/hone", "home", "home/agent", "var", "var/tmp",
    "var/log", "var/lib", "var/cache", "opt", "opt/hone", "opt/hone/init", "opt/hone/python",
    "opt/hone/venv", "srv", "mnt", "media", "root",
)  # fmt: skip
# Directories of /usr remade in the upper layer, so that the sandbox's user can write to them.
_OWN_IN_USR = (
    "bin", "sbin", "lib", "lib64", "share", "include", "src", "local", "local/bin", "local/sbin", "local/lib",
    "local/include", "local/share", "local/etc", "lib/python3", "lib/python3/dist-packages",
)  # fmt: skip
_ETC = Path("/etc")
# Files of it without secrets on every distribution: no accounts, hosts, keys or proxies of the host.
_COPIED = (
    "alternatives", "bash.bashrc", "debian_version", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "magic", "magic.mime", "mime.types", "os-release", "pki/tls/certs", "profile", "protocols",
    "rpc", "services", "shells", "ssl/certs/ca-certificates.crt",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
_WRITTEN = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{UID}:{UID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}
_PYTEST_COMMAND = """#!{bin}/python3
import sys
from pytest import console_main
sys.exit(console_main())
"""


def base(etc: Path, python: HostPython) -> Base:
    """Return the base of the host's system directories with `etc` from `build_etc`."""
    links: dict[str, str] = {}
    links_in_usr: dict[str, str] = {}
    shown = [(str(python.directory), RUNTIME_TARGET)]
    if python.prefix:
        shown.append((str(python.prefix), PYTHON_TARGET))
    if python.library:  # the interpreter's search path names its directory on the host, which is not mounted
        for folder in ("lib", *_shadowing(python.library)):
            links_in_usr[f"{folder}/{python.library}"] = f"{PYTHON_TARGET}/lib/{python.library}"
    for name in ("bin", "sbin", "lib", "lib32", "libx32", "lib64"):
        if Path(f"/{name}").is_symlink():
            links[name] = os.readlink(f"/{name}")
        elif Path(f"/{name}").is_dir():
            shown.append((f"/{name}", f"/{name}"))
    return Base(
        name="host",
        uid=UID,
        gid=UID,
        env={"PATH": _PATH, "HOME": HOME, "LANG": "C.UTF-8"},
        workdir=DEFAULT_WORKDIR,
        directories=list(_DIRECTORIES),
        links=links,
        files={},
        overlays=[
            Overlay(target="/", name="root", lowers=[], translated=False),
            Overlay(
                target="/usr",
                name="usr",
                lowers=["/usr"],
                translated=False,
                own=list(dict.fromkeys([*_OWN_IN_USR, *map(posixpath.dirname, links_in_usr)])),
                links=links_in_usr,
            ),
            Overlay(target="/etc", name="etc", lowers=[str(etc)], translated=False),
        ],
        shown=shown,
    )


def _shadowing(library: str) -> list[str]:
    """Return directories of /usr with another build of a library, which the linker would find first."""
    folders = [f"lib/{sysconfig.get_config_var('MULTIARCH')}", "lib64"]
    return [
        folder
        for folder in folders
        if (Path("/usr") / folder / library).is_file() and not (Path("/usr") / folder).is_symlink()
    ]


def build_etc(directory: Path) -> None:
    """Write `directory`/etc, readable by every user: of the host's files those that every user may read."""
    directory.mkdir(mode=0o700)
    target = directory / "etc"
    target.mkdir()
    for name in _COPIED:
        source, copy = _ETC / name, target / name
        if not _is_public(source):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            copy.mkdir()
            _copy_public(str(source), str(copy))
        else:
            shutil.copyfile(source, copy)
    for name, text in _WRITTEN.items():
        (target / name).write_text(text)
    make_readable(target)


def _copy_public(source: str, target: str) -> None:
    """Copy the files of a directory that every user may read, and links as links.

    Each opening of a provider copies some hundred links: `shutil.copytree` takes four times as long.
    """
    with os.scandir(source) as entries:
        for entry in entries:
            copy = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)
            elif _is_public(Path(entry.path)):
                if entry.is_dir():
                    os.mkdir(copy)
                    _copy_public(entry.path, copy)
                else:
                    shutil.copyfile(entry.path, copy)


def _is_public(path: Path) -> bool:
    """Whether every user of this machine may read a file or directory, by its mode and those above it."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
        above = [folder.stat().st_mode for folder in real.parents]
    except OSError:
        return False
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return False
    return mode & needed == needed and all(folder & 0o001 for folder in above)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPython:
    directory: Path  # the virtual environment, mounted at RUNTIME_TARGET
    prefix: Path | None  # mounted at PYTHON_TARGET; None for the system's Python
    library: str | None  # file name of its shared libpython


def prepare_python(cache_dir: Path) -> HostPython:
    """Return the Python of image `host`, built on first use. Raises ProviderUnavailable without pytest."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = None if sys.base_prefix == "/usr" else Path(sys.base_prefix)
    home = f"{PYTHON_TARGET}/bin" if prefix else "/usr/bin"
    distributions = _closure("pytest")
    key = json.dumps([platform.python_version(), sys.base_prefix, home, sorted(distributions)])
    target = cache_dir / f"runtime-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    directory = build_directory(
        target, lambda partial, _: _build_python(partial, version, home, distributions)
    )
    shared = prefix is not None and sysconfig.get_config_var("Py_ENABLE_SHARED")
    library = str(sysconfig.get_config_var("INSTSONAME")) if shared else None
    return HostPython(directory=directory, prefix=prefix, library=library)


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


def _build_python(
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
    make_readable(directory)
