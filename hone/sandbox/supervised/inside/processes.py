"""The processes of a sandbox: their trees, their memory, their end."""

import _signal as signal  # pyright: ignore[reportMissingImports]
import posix as os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PASSES = 30  # of stopping what is there; more than two or three take something that forks without end
_LOOKS = 1000  # at what was stopped, until nothing of it is in the middle of its end


class Snapshot:
    """The processes inside, as far as they can be told: they are read one after the other."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}  # pid -> parent pid
        self.halted: set[int] = set()  # those that were stopped
        # Whether none came or went meanwhile. Else one may be missing, or be known by a parent that is gone.
        self.steady = True
        last = _last_pid()
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                        line = file.read(512)
                except OSError:
                    self.steady = False
                    continue
                state, parent = line[line.rindex(b")") + 2 :].split(None, 2)[:2]
                self.parents[int(name)] = int(parent)
                if state in b"Tt":
                    self.halted.add(int(name))
        self.steady = self.steady and _last_pid() == last

    def below(self, roots: set[int]) -> set[int]:
        """`roots` and their descendants. A subreaper's orphans are among them: no double fork leads out."""
        found, grew = set(roots), True
        while grew:
            grew = False
            for pid, parent in self.parents.items():
                if parent in found and pid not in found:
                    found.add(pid)
                    grew = True
        return found

    def all_but(self, roots: set[int]) -> set[int]:
        """All inside but process 1, and what is in the trees of `roots`."""
        return set(self.parents) - {1} - self.below(roots)


def _last_pid() -> bytes:
    """The number of the process that was made last inside."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return file.read(128).split()[-1]


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_everything() -> set[int]:
    """Kill all inside but process 1, and return them.

    The kernel lets no fork pass while it signals everything (kill(2) with -1): nothing runs ahead.
    """
    signal_all({-1}, signal.SIGKILL)
    return set(Snapshot().parents) - {1}


def kill_all(find: "Callable[[Snapshot], set[int]]") -> set[int]:
    """Kill what `find` finds, as long as there is any; return what was killed.

    All of it is stopped first, pass by pass, so that no fork runs ahead of the kill; and where there is no
    end of it, everything inside is stopped at once for a moment.
    """
    stopped: set[int] = set()
    for _ in range(_PASSES):
        snapshot = Snapshot()
        new = find(snapshot) - stopped
        signal_all(new, signal.SIGSTOP)
        stopped |= new
        if snapshot.steady and not new:
            break
    else:
        stopped |= _find_in_a_frozen_world(find)
    signal_all(stopped, signal.SIGKILL)
    return stopped


def _find_in_a_frozen_world(find: "Callable[[Snapshot], set[int]]") -> set[int]:
    """What `find` finds, which stays stopped; the rest goes on, unless it was stopped before."""
    before = Snapshot()
    signal_all({-1}, signal.SIGSTOP)
    snapshot, looks = Snapshot(), 1
    while not snapshot.steady and looks < _LOOKS:  # nothing is made any more; what was ending ends
        snapshot, looks = Snapshot(), looks + 1
    found = find(snapshot)
    signal_all(set(snapshot.parents) - found - before.halted - {1}, signal.SIGCONT)
    return found


def resident_kib(pid: int) -> int:
    """Anonymous and shared memory of a process, in KiB."""
    total = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1])
    except OSError:
        return 0
    return total


def exists(pid: int) -> bool:
    """Whether there is such a process, dead but not reaped ones included."""
    try:
        os.stat(f"/proc/{pid}")
    except FileNotFoundError:
        return False
    return True
