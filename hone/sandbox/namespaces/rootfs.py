"""Turn a forked child into bubblewrap, over a root file system built in new user and mount namespaces.

One size-limited tmpfs holds all writable files: the upper layers of the overlays and /dev/shm. The lower
layers are read-only directories of an image or the host. All mounts exist in this mount namespace only, so
the kernel removes them with the sandbox's last process.

Invariant: no inode of a sandbox is in another one, because locks, leases, inotify and pipes would join them.
So even read-only trees of the host are shown through an overlay. Without root, devices are the exception.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import random
import shutil
import signal
import socket
import stat
from dataclasses import dataclass, replace
from typing import NoReturn

from hone.sandbox import seccomp
from hone.sandbox.namespaces import cgroups, snapshots, syscalls
from hone.sandbox.namespaces.host_user import HostUser
from hone.sandbox.namespaces.plan import Base, Overlay, Plan
from hone.sandbox.namespaces.syscalls import write_file

_OPTION_BYTES_MAX = 8192  # of the options and control messages of one socket, which no memory limit counts
TERMINALS_MAX = 32  # of one sandbox; all sandboxes of a machine share about 3,000
_WATCHERS_MAX = 32  # inotify instances of one sandbox; the kernel's limit is 128 per user

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_OPTIONS = "size=64k,nr_inodes=64,mode=0755"
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}  # fmt: skip

_STAGE = "/tmp"  # the private tmpfs is mounted over it, in this mount namespace only  # noqa: S108
_ROOT = f"{_STAGE}/root"
# Paths in /proc that expose the host; bubblewrap itself makes sys, irq, bus and sysrq-trigger read-only.
_MASKED_FILES = (
    "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats", "sched_debug",
    "timer_list",
)  # fmt: skip
_MASKED_DIRECTORIES = ("acpi", "asound", "scsi")
# read by language runtimes; the rest of /sys is absent
SHOWN_SYS = [(path, path) for path in ["/sys/devices/system/cpu"] if os.path.isdir(path)]


def become_sandbox(
    plan: Plan, groups: list[str], channel: int, errors: int, user: HostUser | None, upper_to: int
) -> NoReturn:
    """Turn the calling process, a new fork, into bubblewrap; if that fails, write the error and exit.

    Args:
        channel: becomes standard input; `errors` standard output and error.
        user: the user to become, as root; None keeps an ordinary user.
        upper_to: socket that receives a descriptor of the directory of the upper layers, for snapshots.
    """
    gc.disable()  # a collection would touch, and so copy, every page of the server
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        cgroups.enter(groups)
        os.dup2(channel, 0)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.setsid()
        if plan.cores:
            usable = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, random.sample(usable, min(plan.cores, len(usable))))
        syscalls.leave_session_keyring()
        _build(plan, _enter_with_trees(plan, user))
        upper = os.open(f"{_STAGE}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        socket.send_fds(socket.socket(fileno=upper_to), [b"u"], [upper])
        os.execve(plan.bwrap, _bubblewrap(plan, _ROOT), {})
    except BaseException as error:
        os.write(errors, str(error).encode("utf-8", "replace"))
    finally:
        os._exit(70)


def _enter_with_trees(plan: Plan, user: HostUser | None) -> _Trees:
    """Drop root's privileges and enter the namespaces; return the descriptors of the plan's host paths."""
    if user is None:
        _enter_namespaces()
        return _Trees(plan, None)
    trees = _Trees(plan, user)  # paths may be below private directories, so they are opened as root
    trees.dev = _own_devices()
    os.setgroups([])
    os.setresgid(user.uid, user.uid, user.uid)
    os.setresuid(user.uid, user.uid, user.uid)
    syscalls.set_dumpable()
    _enter_namespaces()
    return trees


def _enter_namespaces() -> None:
    """Enter new user, mount and network namespaces, whose mounts and settings this process may change."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"0 {uid} 1")
    write_file("/proc/self/gid_map", f"0 {gid} 1")
    write_file("/proc/sys/user/max_user_namespaces", "1")  # for bubblewrap; none is left for the agent
    write_file("/proc/sys/user/max_inotify_instances", str(_WATCHERS_MAX))
    with contextlib.suppress(FileNotFoundError):  # one setting for the whole machine before Linux 6.8
        write_file("/proc/sys/net/core/optmem_max", str(_OPTION_BYTES_MAX))
    syscalls.start_loopback()


@dataclass(frozen=True, slots=True)
class _Shown:
    """A read-only directory or file of the host."""

    target: str  # path inside
    tree: int  # of the directory, or of the directory with the file
    name: str  # of the file; "" for a directory


class _Trees:
    """Descriptors of detached mounts of all host paths in the plan."""

    def __init__(self, plan: Plan, user: HostUser | None) -> None:
        self.copied = syscalls.clone_tree(plan.copied) if plan.copied else None
        self.snapshot = snapshots.Restoring(plan.snapshot) if plan.snapshot else None
        self.lowers: dict[str, list[int]] = {}  # by the name of the overlay
        for overlay in plan.base.overlays:
            owner = user if overlay.translated else None
            self.lowers[overlay.name] = [_clone_as_own(path, owner) for path in overlay.lowers]
        self.dev: int | None = None  # with device nodes of this sandbox alone
        self.devices: list[tuple[str, int]] = []  # nodes of the host, for an ordinary user
        if user is None:
            self.devices = [(name, syscalls.clone_tree(f"/dev/{name}", device=True)) for name in _DEVICES]
        self.shown = [_show(source, target, None) for source, target in [*plan.base.shown, *SHOWN_SYS]]
        self.shown += [_show(source, target, user) for source, target in plan.mounts]
        self.sockets = [(target, syscalls.clone_tree(source)) for source, target in plan.sockets]


def _own_devices() -> int:
    """Return a tree with new device nodes. Only as root, which moves to a new mount namespace."""
    numbers = {name: os.stat(f"/dev/{name}").st_rdev for name in _DEVICES}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", _STAGE, "tmpfs", syscalls.MS_NOSUID, _DEV_OPTIONS)
    umask = os.umask(0)
    for name, number in numbers.items():
        os.mknod(f"{_STAGE}/{name}", stat.S_IFCHR | 0o666, number)
    os.umask(umask)
    _fill_devices(_STAGE)
    return syscalls.clone_tree(_STAGE, device=True)


def _show(source: str, target: str, user: HostUser | None) -> _Shown:
    if os.path.isdir(source):
        return _Shown(target, _clone_as_own(source, user), "")
    if user is None:
        return _Shown(target, syscalls.clone_tree(os.path.dirname(source)), os.path.basename(source))
    info = os.stat(source)
    owned = user.map_of(info.st_uid, info.st_gid)
    return _Shown(
        target, syscalls.clone_tree(os.path.dirname(source), userns_fd=owned), os.path.basename(source)
    )


def _clone_as_own(path: str, user: HostUser | None) -> int:
    """Clone a mount so that files of the path's owner belong to the sandbox's user."""
    if user is None:
        return syscalls.clone_tree(path)
    info = os.stat(path)
    return syscalls.clone_tree(path, userns_fd=user.map_of(info.st_uid, info.st_gid))


def copy_where_needed(plan: Plan, user: HostUser | None) -> Plan:
    """Return the plan with the overlay of workdir replaced by a copy where this machine cannot mount it.

    An overlay needs file systems that translate owners (as root; overlayfs itself does not), and user
    attributes on tmpfs (Linux 6.6), to replace a directory of the layer.
    """
    workdir = next((overlay for overlay in plan.base.overlays if overlay.name == "workdir"), None)
    if workdir is None:
        return plan
    possible = kernel() >= (6, 6)
    if possible and user is not None:
        try:
            os.close(_clone_as_own(workdir.lowers[-1], user))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            possible = False
    if possible:
        return plan
    others = [overlay for overlay in plan.base.overlays if overlay is not workdir]
    return replace(plan, base=replace(plan.base, overlays=others), copied=workdir.lowers[-1])


def kernel() -> tuple[int, int]:
    """Return major and minor version of the running kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def _build(plan: Plan, trees: _Trees) -> None:
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    disk_mib = plan.limits.disk_mib
    size = f"size={disk_mib}m,nr_inodes={disk_mib * 256},mode=0755"
    syscalls.mount("tmpfs", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)
    for name in ("root", "shm", "upper", "work", "lower", "above", "none", "top"):
        os.mkdir(f"{_STAGE}/{name}")
    os.chmod(f"{_STAGE}/shm", 0o1777)  # noqa: S103
    _make_top(plan.base, plan.made_ns)
    for overlay in plan.base.overlays:
        _mount_overlay(overlay, trees)
    if trees.snapshot is None:  # the snapshot has workdir, unless its sandbox removed it
        os.close(_open_directory(plan.workdir))
    if trees.copied is not None and trees.snapshot is None:
        copied = f"{_STAGE}/lower/copied"
        os.mkdir(copied)
        syscalls.attach(trees.copied, copied)
        shutil.copytree(copied, _ROOT + plan.workdir, symlinks=True, dirs_exist_ok=True)
    _make_devices(trees)
    # A mount point cannot be renamed or removed, but its parents can: so they become mount points, too.
    for parent in ("/opt", "/opt/hone"):
        syscalls.mount(_ROOT + parent, _ROOT + parent, "", syscalls.MS_BIND)
    for number, shown in enumerate(trees.shown):
        _mount_shown(shown, f"shown{number}")
    for target, fd in trees.sockets:
        point = _open_mountpoint(target, is_dir=False)
        syscalls.attach(fd, point)
        os.close(point)
    flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount("none", f"{_ROOT}/opt/hone", "", flags | syscalls.MS_NOSUID | syscalls.MS_NODEV)


def _make_top(base: Base, made_ns: int) -> None:
    """Make the topmost lower layer of the root: directories, files and links of the base."""
    top = f"{_STAGE}/top"
    for name in base.directories:
        os.mkdir(f"{top}/{name}")
    for name in {"tmp", "var/tmp"} & set(base.directories):
        os.chmod(f"{top}/{name}", 0o1777)  # noqa: S103
    for name, text in base.files.items():
        write_file(f"{top}/{name}", text)
    for name, target in base.links.items():
        os.symlink(target, f"{top}/{name}")
    for name in [*base.links, *base.files, *reversed(base.directories), "."]:
        os.utime(f"{top}/{name}", ns=(made_ns, made_ns), follow_symlinks=False)


def _make_devices(trees: _Trees) -> None:
    """Make /dev as bubblewrap's `--dev` does, which would cost 1 ms and a second user namespace."""
    directory = f"{_ROOT}/dev"
    flags = syscalls.MS_NOSUID
    if trees.dev is not None:
        syscalls.attach(trees.dev, directory)
    else:
        flags |= syscalls.MS_NODEV
        syscalls.mount("tmpfs", directory, "tmpfs", flags, _DEV_OPTIONS)
        for name, fd in trees.devices:
            os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            syscalls.attach(fd, f"{directory}/{name}")
        _fill_devices(directory)
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={TERMINALS_MAX}"
    syscalls.mount("devpts", f"{directory}/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, terminals)
    syscalls.mount(f"{_STAGE}/shm", f"{directory}/shm", "", syscalls.MS_BIND)
    remount = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount("none", directory, "", remount | flags)


def _fill_devices(directory: str) -> None:
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{directory}/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"{directory}/{name}")


def _mount_overlay(overlay: Overlay, trees: _Trees) -> None:
    """Mount an overlay. Its lowers from the top: `_make_top` for the root, the image or host."""
    paths: list[str] = []
    for number, fd in enumerate(trees.lowers[overlay.name]):
        paths.append(f"{_STAGE}/lower/{overlay.name}{number}")
        os.mkdir(paths[-1])
        syscalls.attach(fd, paths[-1])
    if overlay.target == "/":
        paths.insert(0, f"{_STAGE}/top")
    upper, work = f"{_STAGE}/upper/{overlay.name}", f"{_STAGE}/work/{overlay.name}"
    os.mkdir(upper)
    os.mkdir(work)
    shutil.copymode(paths[0], upper)
    if trees.snapshot is not None and trees.snapshot.has(overlay.name):
        trees.snapshot.restore(overlay.name, upper, newest_first=os.listdir(_STAGE)[0] != "root")
    else:
        _fill_upper(overlay, upper, paths[-1])
    options = f"lowerdir={':'.join(paths)},upperdir={upper},workdir={work},userxattr"
    target = os.open(_ROOT, os.O_PATH) if overlay.target == "/" else _open_directory(overlay.target)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("overlay", f"/proc/self/fd/{target}", "overlay", flags, options)
    os.close(target)


def _fill_upper(overlay: Overlay, upper: str, lowest: str) -> None:
    """Make the directories and links that a new sandbox has in its upper layer."""
    for directory in overlay.own:
        lower = f"{lowest}/{directory}"
        if os.path.isdir(lower) and not os.path.islink(lower):
            os.mkdir(f"{upper}/{directory}")
    for name, to in overlay.links.items():
        os.symlink(to, f"{upper}/{name}")


def _mount_shown(shown: _Shown, name: str) -> None:
    """Mount a read-only overlay of a host directory or, by one of the directory above it, of a host file."""
    lower, above = f"{_STAGE}/lower/{name}", f"{_STAGE}/above/{name}"
    os.mkdir(lower)
    syscalls.attach(shown.tree, lower)
    if shown.name:
        os.mkdir(above)
        _mount_read_only(lower, above)
    point = _open_mountpoint(shown.target, is_dir=not shown.name)
    if shown.name:
        syscalls.attach(syscalls.clone_tree(f"{above}/{shown.name}"), point)
    else:
        _mount_read_only(lower, f"/proc/self/fd/{point}")
    os.close(point)


def _mount_read_only(lower: str, target: str) -> None:
    flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
    options = f"lowerdir={lower}:{_STAGE}/none,userxattr"  # an overlay without upper has two lowers at least
    syscalls.mount("overlay", target, "overlay", flags, options)


def _open_directory(path: str) -> int:
    """Open a directory of the sandbox, made if missing; links of the image cannot lead out of its root."""
    root = os.open(_ROOT, os.O_PATH)
    directory, so_far = os.dup(root), ""
    for name in filter(None, path.split("/")):
        so_far = f"{so_far}/{name}"
        try:
            inner = syscalls.open_in_root(root, so_far, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            os.mkdir(name, dir_fd=directory)
            inner = syscalls.open_in_root(root, so_far, os.O_PATH | os.O_DIRECTORY)
        os.close(directory)
        directory = inner
    os.close(root)
    return directory


def _open_mountpoint(path: str, *, is_dir: bool) -> int:
    if is_dir:
        return _open_directory(path)
    parent = _open_directory(os.path.dirname(path))
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(os.path.basename(path), flags, 0o644, dir_fd=parent)
    finally:
        os.close(parent)


def _bubblewrap(plan: Plan, root: str) -> list[str]:
    """Return the argv of bubblewrap for a root file system mounted at `root`, including /dev.

    The seccomp program is passed in an inheritable memory file.
    """
    program = os.memfd_create("seccomp", 0)
    os.write(program, seccomp.program(fixed_cores=plan.cores > 0))
    os.lseek(program, 0, os.SEEK_SET)
    return [
        plan.bwrap,
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--uid", str(plan.base.uid), "--gid", str(plan.base.gid)),
        *("--hostname", "sandbox"),
        *("--dev-bind", root, "/"),  # its mounts have nodev already
        *("--proc", "/proc", *masks(), "--mqueue", "/dev/mqueue"),
        *("--chdir", "/", "--cap-drop", "ALL", "--clearenv", "--seccomp", str(program)),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--", *plan.init),
    ]


@functools.cache
def masks() -> list[str]:
    """Return the options that mask the paths that exist on this machine."""
    words: list[str] = []
    for name in _MASKED_FILES:
        if os.path.exists(f"/proc/{name}"):
            words += ["--ro-bind", f"{_ROOT}/dev/null", f"/proc/{name}"]
    for name in _MASKED_DIRECTORIES:
        if os.path.exists(f"/proc/{name}"):
            words += ["--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
    return words
