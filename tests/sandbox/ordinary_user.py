"""Run a command as an ordinary user, from root."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

UID = 54321  # nobody in particular

# The interpreter may lie in root's private home. In a mount namespace of the command's own, that home is
# covered by an empty one in which only the interpreter is left.
_SHOW_PYTHON = """
mkdir {keep}
mount --bind {prefix} {keep}
mount -t tmpfs -o mode=0755 tmpfs {private}
mkdir -p {prefix}
mount --bind {keep} {prefix}
umount {keep}
"""


# An account of the user, and a range of ids for user namespaces.
_ACCOUNT = """
cd {scratch}
(cat /etc/passwd; echo ordinary:x:{uid}:{uid}::/nonexistent:/bin/sh) > passwd
(cat /etc/group; echo ordinary:x:{uid}:) > group
echo ordinary:{first}:65536 > subuid
cp subuid subgid
for name in passwd group subuid subgid; do touch /etc/$name; mount --bind $name /etc/$name; done
"""


def run_as_ordinary_user(command: list[str], *, account: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `command` as user UID, in a fresh home that is removed afterwards.

    Args:
        account: whether the user has a name, and a range of ids for user namespaces.
    """
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        home = Path(scratch) / "home"
        home.mkdir()
        os.chown(home, UID, UID)
        script = "set -e\n"
        prefix = Path(sys.base_prefix)
        private = [path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o001]
        if private:
            words = {"keep": Path(scratch) / "python", "prefix": prefix, "private": private[0]}
            script += _SHOW_PYTHON.format(**{name: shlex.quote(str(path)) for name, path in words.items()})
        if account:
            script += _ACCOUNT.format(scratch=shlex.quote(scratch), uid=UID, first=200_000)
        environment = [f"HOME={home}", f"TMPDIR={home}", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
        user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
        script += "exec " + shlex.join([*user, "env", "-i", *environment, *command])
        isolated = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
        return subprocess.run(isolated, capture_output=True, text=True, cwd="/")
