"""Find, stop and kill processes and whole process trees (Linux).

Also copied as a file into sandboxes, where it runs on any Python from 3.6 on, and on an interpreter without a
standard library. So it imports built-in modules only (`posix` for `os`) and quotes its annotations.
"""

import _signal as signal  # pyright: ignore[reportMissingImports]
import posix as os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Pids = set[int]
    Select = Callable[["Snapshot"], Pids]

_PASSES = 30  # of stopping what is found; a tree that needs more forks without end
_ROUNDS = 30  # of stopping and killing
_RESCANS = 1000  # until no process is in the middle of its exit
_POLL_S = 0.002


class Snapshot:
    """All processes of this PID namespace, read one after the other.

    `steady` says that none started or ended meanwhile. Otherwise one may be missing, or be listed below a
    parent that is gone.
    """

    def __init__(self) -> None:
        self.parents: "dict[int, int]" = {}  # pid -> parent pid; zombies included
        self.stopped: "Pids" = set()
        self.zombies: "Pids" = set()
        self.steady = True
        last = _last_pid()
        for name in os.listdir("/proc"):
            if name.isdigit():
                fields = _read_stat(name)
                if fields is None:
                    self.steady = False
                    continue
                self.parents[int(name)] = int(fields[1])
                if fields[0] in b"Tt":
                    self.stopped.add(int(name))
                elif fields[0] in b"ZX":
                    self.zombies.add(int(name))
        self.steady = self.steady and _last_pid() == last

    def tree(self, roots: "Pids | frozenset[int]") -> "Pids":
        """Return `roots` and their descendants. Orphans are descendants of their subreaper."""
        found, grew = set(roots), True
        while grew:
            more = {pid for pid, parent in self.parents.items() if parent in found} - found
            found |= more
            grew = bool(more)
        return found


def kill_selected(
    select: "Select", *, last: "frozenset[int]" = frozenset(), may_stop_all: bool = False
) -> "Pids":
    """Kill the processes that `select` picks from a snapshot, until all it picks are dead; return them.

    They are stopped first, so that few forks outrun the kill. The child of a fork that was under way appears
    by the time its parent is dead, so the search is repeated until then.

    Args:
        last: kill these after all others, because orphans are found below them.
        may_stop_all: when a tree forks faster than passes can follow, stop every process of the namespace for
            a moment. Only for process 1 of a PID namespace.
    """
    killed: "Pids" = set()
    for _ in range(_ROUNDS):
        found = _stop(select, may_stop_all)
        killed |= found
        if not found - last:
            break
        send_signal(found - last, signal.SIGKILL)
        _wait_until_dead(found - last)
    send_signal(killed, signal.SIGKILL)
    return killed | select(Snapshot())


def _stop(select: "Select", may_stop_all: bool) -> "Pids":
    """Stop the live processes that `select` picks, pass by pass, and return them."""
    stopped: "Pids" = set()
    for _ in range(_PASSES):
        snapshot = Snapshot()
        new = select(snapshot) - snapshot.zombies - stopped
        send_signal(new, signal.SIGSTOP)
        stopped |= new
        if snapshot.steady and not new:
            return stopped
    return stopped | _stop_all(select) if may_stop_all else stopped


def _stop_all(select: "Select") -> "Pids":
    """Stop every process; return the live ones of `select`, resume those not stopped before."""
    before = Snapshot()
    send_signal({-1}, signal.SIGSTOP)
    snapshot, scans = Snapshot(), 1
    while not snapshot.steady and scans < _RESCANS:  # nothing starts any more; exits under way finish
        snapshot, scans = Snapshot(), scans + 1
    found = select(snapshot) - snapshot.zombies
    send_signal(set(snapshot.parents) - found - before.stopped - {1}, signal.SIGCONT)
    return found


def _wait_until_dead(pids: "Pids") -> None:
    """Wait, for a bounded time, until killed processes are zombies or gone."""
    for _ in range(_RESCANS):
        if all(start_time(pid) is None for pid in pids):
            return
        time.sleep(_POLL_S)


def kill_all_but_init() -> "Pids":
    """Kill every process of the namespace but process 1, which must be the caller; return the killed.

    The kernel lets no fork pass while it signals everything (kill(2) with -1).
    """
    send_signal({-1}, signal.SIGKILL)
    return set(Snapshot().parents) - {1}


def kill_descendants() -> None:
    """Kill all descendants of this process. Only a subreaper's orphans are among them."""
    own = os.getpid()
    kill_selected(lambda snapshot: snapshot.tree({own}) - {own})


def kill_group(pid: int) -> None:
    """Kill a process group; no error when it is gone."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_matching(matches: "Callable[[int], bool]", timeout_s: float) -> int:
    """Kill all processes that match, wait until they are dead (at most `timeout_s`), return their number."""
    killed = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _kill_pinned(pid, matches)}
    deadline = time.monotonic() + timeout_s
    while any(start_time(pid) is not None for pid in killed) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return len(killed)


def _kill_pinned(pid: int, matches: "Callable[[int], bool]") -> bool:
    """Kill a process that matches; the descriptor that pins it rules out a PID that was reused meanwhile."""
    if not matches(pid):
        return False
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if matches(pid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
    except (ProcessLookupError, PermissionError):  # dead meanwhile, or another user's
        pass
    finally:
        os.close(fd)
    return False


def send_signal(pids: "Pids", number: int) -> None:
    """Signal each process; skip those that are gone or belong to another user."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def reap_children(timeout_s: float) -> bool:
    """Collect killed children and orphans; return whether none is left after at most `timeout_s`.

    Call it only while no other code waits for a child.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)
        except ChildProcessError:
            return True
    return False


def start_time(pid: int) -> "int | None":
    """Return a process's start in clock ticks since boot; None when it is dead (a zombie is dead)."""
    fields = _read_stat(str(pid))
    return None if fields is None or fields[0] in b"ZX" else int(fields[19])


def exists(pid: int) -> bool:
    """Return whether there is such a process; a zombie counts."""
    try:
        os.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    return True


def resident_kib(pid: int) -> int:
    """Return the anonymous and shared memory of a process in KiB; 0 when it is gone."""
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1])
    except OSError:
        return 0
    return total


def _read_stat(pid: str) -> "list[bytes] | None":
    """Return the fields of /proc/PID/stat from the state on; None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            line = file.read(1024)
    except OSError:
        return None
    return line[line.rindex(b")") + 2 :].split()


def _last_pid() -> bytes:
    """Return the PID that this namespace gave out last."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return file.read(128).split()[-1]
