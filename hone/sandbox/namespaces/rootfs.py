"""What a sandbox sees: built in the child that becomes bubblewrap, inside fresh user and mount namespaces.

One size-capped tmpfs holds everything that can be written. Over it lie overlays whose lower layers are the
host's /usr, a small /etc and the layer of the workdir, and read-only mounts (the interpreter, the runtime).
All of it exists in this mount namespace only, so it is gone with the sandbox's last process.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass

from hone.sandbox.namespaces import cgroups, syscalls

SANDBOX_UID = 60789  # on the host, when Hone runs as root: a number that no user or service manager hands out
INNER_UID = 1000  # `agent`, as commands see themselves
HOME = "/home/agent"
PYTHON_TARGET = "/opt/hone/python"
RUNTIME_TARGET = "/opt/hone/venv"

_STAGE = "/tmp"  # covered by the private tmpfs, in this mount namespace only  # noqa: S108
_ROOT = f"{_STAGE}/root"
_SUPERVISOR = f"import sys; sys.path.append({RUNTIME_TARGET!r}); from inside.supervisor import main; main()"
_DIRECTORIES = (
    "etc", "usr", "proc", "dev", "tmp", "run", "home", "home/agent", "var", "var/tmp", "var/log", "var/lib",
    "var/cache", "opt", "opt/hone", "opt/hone/python", "opt/hone/venv", "srv", "mnt", "media", "root",
)  # fmt: skip
# Directories of /usr remade in the upper layer as the sandbox's own, so that files can be put there.
_OWN_IN_USR = (
    "bin", "sbin", "lib", "lib64", "share", "include", "src", "local", "local/bin", "local/sbin", "local/lib",
    "local/include", "local/share", "local/etc", "lib/python3", "lib/python3/dist-packages",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the child needs to build one sandbox; sent by the provider as JSON."""

    id: str
    owner: str
    bwrap: str
    workdir: str
    layer: str | None
    mounts: list[tuple[str, str]]  # (source on the host, target inside), read-only
    etc: str
    runtime: str
    python_prefix: str | None  # None: the interpreter is the system's own
    python: str  # the interpreter's path inside
    library: str | None  # file name of a shared libpython, linked to where the loader looks
    memory_mib: int
    pids: int
    cpus: float
    disk_mib: int
    watch_memory_kib: int  # for the supervisor's watchdog, 0 where a cgroup holds the limit
    limit_pids: int  # for RLIMIT_NPROC, 0 where a cgroup holds the limit


def become_sandbox(
    plan: Plan, groups: list[str], channel: int, errors: int, owner_maps: OwnerMaps | None
) -> None:
    """Turn the calling process, a fresh fork, into bubblewrap. Returns only by raising OSError.

    `owner_maps` is given as root, None as an ordinary user.
    """
    cgroups.enter(groups)
    os.dup2(channel, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.setsid()
    syscalls.leave_session_keyring()
    if (
        os.geteuid() == 0
    ):  # what lies below a private home is opened while we may, then the rights are given up
        trees = _open_trees(plan, owner_maps)
        os.setgroups([])
        os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
        os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
        syscalls.set_dumpable()
        _enter_namespaces()
    else:
        _enter_namespaces()
        trees = _open_trees(plan, owner_maps)
    _build(plan, trees)
    os.execve(plan.bwrap, _bwrap_command(plan), {})


class OwnerMaps:
    """User namespaces whose map lets files of one owner appear as the sandbox's own (only as root)."""

    def __init__(self) -> None:
        self._fds: dict[tuple[int, int], int] = {}

    def get(self, uid: int, gid: int) -> int:
        """Descriptor of the user namespace that shows `uid`, `gid` as SANDBOX_UID."""
        if (uid, gid) not in self._fds:
            self._fds[uid, gid] = self._make(uid, gid)
        return self._fds[uid, gid]

    def _make(self, uid: int, gid: int) -> int:
        ready, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWUSER)
                os.write(ready_write, b"x")
                signal_pause()
            finally:
                os._exit(1)
        os.close(ready_write)
        try:
            if os.read(ready, 1) != b"x":
                raise OSError("cannot make a user namespace")
            for name, number in (("uid_map", uid), ("gid_map", gid)):
                _put(f"/proc/{pid}/{name}", f"{number} {SANDBOX_UID} 1")
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(ready)
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def signal_pause() -> None:
    """Wait for a signal."""
    import signal

    signal.pause()


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _open_trees(plan: Plan, owner_maps: OwnerMaps | None) -> dict[str, int]:
    """name -> detached mount of each host path that the sandbox shows."""
    trees = {"etc": syscalls.clone_tree(plan.etc), RUNTIME_TARGET: syscalls.clone_tree(plan.runtime)}
    if plan.python_prefix:
        trees[PYTHON_TARGET] = syscalls.clone_tree(plan.python_prefix)
    if plan.layer:
        name, tree = _open_layer(plan.layer, owner_maps)
        trees[name] = tree
    for source, target in plan.mounts:
        trees[target] = _clone_as_own(source, owner_maps)
    return trees


def _open_layer(path: str, owner_maps: OwnerMaps | None) -> tuple[str, int]:
    """The layer as an overlay's lower directory, or, where that cannot be made writable, to be copied.

    An overlay needs two things that are young: file systems that translate owners (as root; not overlayfs
    itself), and user attributes on tmpfs (Linux 6.6), to replace a directory of the layer.
    """
    if _kernel() < (6, 6):
        return "copied layer", syscalls.clone_tree(path)
    try:
        return "layer", _clone_as_own(path, owner_maps)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return "copied layer", syscalls.clone_tree(path)


def _kernel() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def _clone_as_own(path: str, owner_maps: OwnerMaps | None) -> int:
    """As root, files of the path's owner become the sandbox's; as a user they already are."""
    if owner_maps is None:
        return syscalls.clone_tree(path)
    info = os.stat(path)
    return syscalls.clone_tree(path, userns_fd=owner_maps.get(info.st_uid, info.st_gid))


def _enter_namespaces() -> None:
    """Own user and mount namespaces, in which this process may mount."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    _put("/proc/self/setgroups", "deny")
    _put("/proc/self/uid_map", f"0 {uid} 1")
    _put("/proc/self/gid_map", f"0 {gid} 1")
    # bubblewrap nests two (one to mount devpts, one to drop to INNER_UID); the agent gets none of its own
    _put("/proc/sys/user/max_user_namespaces", "2")


def _build(plan: Plan, trees: dict[str, int]) -> None:
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    size = f"size={plan.disk_mib}m,nr_inodes={plan.disk_mib * 256},mode=0755"
    syscalls.mount("tmpfs", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)
    for name in ("root", "shm", "upper", "work", "lower", "lower/etc", "lower/workdir"):
        os.mkdir(f"{_STAGE}/{name}")
    for name in _DIRECTORIES:
        os.mkdir(f"{_ROOT}/{name}")
    for name in ("tmp", "var/tmp"):
        os.chmod(f"{_ROOT}/{name}", 0o1777)  # noqa: S103
    os.chmod(f"{_STAGE}/shm", 0o1777)  # noqa: S103
    for name in ("bin", "sbin", "lib", "lib32", "libx32", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{_ROOT}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{_ROOT}/{name}")
            syscalls.attach(syscalls.clone_tree(f"/{name}"), f"{_ROOT}/{name}")
    syscalls.attach(trees.pop("etc"), f"{_STAGE}/lower/etc")
    _overlay("usr", "/usr", f"{_ROOT}/usr", _OWN_IN_USR)
    _overlay("etc", f"{_STAGE}/lower/etc", f"{_ROOT}/etc", ())
    if plan.library:  # the interpreter's own search path names its place on the host, which is not shown
        os.symlink(f"{PYTHON_TARGET}/lib/{plan.library}", f"{_ROOT}/usr/lib/{plan.library}")
    os.makedirs(_ROOT + plan.workdir, exist_ok=True)
    for name in ("layer", "copied layer"):
        if name in trees:
            syscalls.attach(trees.pop(name), f"{_STAGE}/lower/workdir")
            if name == "layer":
                _overlay("workdir", f"{_STAGE}/lower/workdir", _ROOT + plan.workdir, ())
            else:
                shutil.copytree(
                    f"{_STAGE}/lower/workdir", _ROOT + plan.workdir, symlinks=True, dirs_exist_ok=True
                )
    # A mount point can be neither renamed nor removed, its parents can: so the parents become mount points.
    for parent in ("/opt", "/opt/hone"):
        syscalls.mount(_ROOT + parent, _ROOT + parent, "", syscalls.MS_BIND)
    for target, fd in trees.items():
        _make_mountpoint(_ROOT + target, is_dir=stat.S_ISDIR(os.fstat(fd).st_mode))
        syscalls.attach(fd, _ROOT + target)
    flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount("none", f"{_ROOT}/opt/hone", "", flags | syscalls.MS_NOSUID | syscalls.MS_NODEV)


def _overlay(name: str, lower: str, target: str, own: tuple[str, ...]) -> None:
    """Mount a writable overlay of `lower`; `own` directories are remade in the upper layer as the user's."""
    upper, work = f"{_STAGE}/upper/{name}", f"{_STAGE}/work/{name}"
    os.mkdir(upper)
    os.mkdir(work)
    shutil.copymode(lower, upper)
    for directory in own:
        if stat.S_ISDIR(_mode(f"{lower}/{directory}")):
            os.mkdir(f"{upper}/{directory}")
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    syscalls.mount("overlay", target, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def _mode(path: str) -> int:
    """st_mode without following a link; 0 when absent."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _make_mountpoint(path: str, *, is_dir: bool) -> None:
    if is_dir:
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o644))


def _bwrap_command(plan: Plan) -> list[str]:
    inner = str(INNER_UID)
    return [
        plan.bwrap,
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--uid", inner, "--gid", inner, "--hostname", "sandbox"),
        *(
            "--bind",
            _ROOT,
            "/",
            "--dev",
            "/dev",
            "--bind",
            f"{_STAGE}/shm",
            "/dev/shm",  # noqa: S108
            "--remount-ro",
            "/dev",
        ),
        *("--proc", "/proc", "--chdir", "/", "--cap-drop", "ALL", "--clearenv"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--"),
        *(plan.python, "-I", "-S", "-c", _SUPERVISOR),
        *(f"hone-sandbox:{plan.owner}/{plan.id}", str(plan.watch_memory_kib), str(plan.limit_pids)),
    ]
