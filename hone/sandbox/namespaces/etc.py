"""The /etc of a sandbox: what programs need to run, nothing that identifies or opens the host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hone.sandbox.namespaces.rootfs import HOME, INNER_UID

# Public by nature on every distribution; accounts, hosts, keys and proxies of the host are not among them.
_COPIED = (
    "alternatives", "bash.bashrc", "debian_version", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "magic", "magic.mime", "mime.types", "os-release", "pki/tls/certs", "profile", "protocols",
    "rpc", "services", "shells", "ssl/certs/ca-certificates.crt",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
_WRITTEN = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{INNER_UID}:{INNER_UID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{INNER_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


def build(directory: Path) -> None:
    """Write `directory`/etc, readable by every user; it becomes a read-only lower layer."""
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
