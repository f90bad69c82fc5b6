"""Run a command as an ordinary user, from root."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

UID = 54321  # nobody in particular

# The interpreter may lie in root's private home. In a mount namespace of the command's own, that home is
# covered by an empty one in which only the interpreter is left.
_SHOW_PYTHON = """
set -e
mkdir -p {keep}
mount --bind {prefix} {keep}
mount -t tmpfs -o mode=0755 tmpfs {home}
mkdir -p {prefix}
mount --bind {keep} {prefix}
umount {keep}
"""


def as_ordinary_user(command: list[str], scratch: Path) -> list[str]:
    """argv that runs `command` as user UID, with a home and temporary directory below `scratch`.

    `scratch` is made readable for that user, and its private parents enterable.
    """
    home = scratch / "home"
    home.mkdir()
    for path in (home, scratch, *scratch.parents):
        if path.stat().st_uid == 0 and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    script = ""
    prefix = Path(sys.base_prefix)
    private = [path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o001]
    if private:
        words = {"keep": scratch / "python", "prefix": prefix, "home": private[0]}
        script = _SHOW_PYTHON.format(**{name: shlex.quote(str(path)) for name, path in words.items()})
    environment = [f"HOME={home}", f"TMPDIR={home}", f"PATH={'/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin'}"]
    user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
    script += f"chown {UID} {shlex.quote(str(home))}\n"
    script += "exec " + shlex.join([*user, "env", "-i", *environment, *command])
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
