"""Base of image `host`: the host's system directories, a minimal /etc, and Hone's Python with pytest."""

from __future__ import annotations

import os
import posixpath
import shutil
import sysconfig
from pathlib import Path

from hone.sandbox.contract import DEFAULT_WORKDIR
from hone.sandbox.namespaces.plan import Base, Overlay
from hone.sandbox.namespaces.runtime import PYTHON_TARGET, RUNTIME_TARGET, Runtime

UID = 1000  # of user `agent` inside
HOME = "/home/agent"

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
# Files of /etc without secrets on every distribution: no accounts, hosts, keys or proxies of the host.
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


def base(etc: Path, runtime: Runtime) -> Base:
    """Return the base of the host's system directories with `etc` from `build_etc`."""
    links: dict[str, str] = {}
    links_in_usr: dict[str, str] = {}
    shown = [(str(runtime.directory), RUNTIME_TARGET)]
    if runtime.python_prefix:
        shown.append((str(runtime.python_prefix), PYTHON_TARGET))
    if runtime.library:  # the interpreter's search path names its directory on the host, which is not mounted
        for folder in ("lib", *_shadowing(runtime.library)):
            links_in_usr[f"{folder}/{runtime.library}"] = f"{PYTHON_TARGET}/lib/{runtime.library}"
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
    """Write `directory`/etc, readable by every user."""
    directory.mkdir(mode=0o700)
    target = directory / "etc"
    target.mkdir()
    for name in _COPIED:
        source, copy = Path("/etc") / name, target / name
        if not os.access(source, os.R_OK) or not source.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=_unreadable)
        else:
            shutil.copyfile(source, copy)
    for name, text in _WRITTEN.items():
        (target / name).write_text(text)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def _unreadable(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not os.access(Path(folder) / name, os.R_OK)]
