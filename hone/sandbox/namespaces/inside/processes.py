"""The processes of a sandbox: their trees, their memory, their end."""

import _signal as signal  # pyright: ignore[reportMissingImports]
import os


def parents() -> dict[int, int]:
    """pid -> parent pid of all processes inside."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    line = file.read(512)
            except OSError:
                continue
            found[int(name)] = int(line[line.rindex(b")") + 2 :].split()[1])
    return found


def tree(root: int) -> set[int]:
    """`root` and its descendants. A command is a subreaper, so a double fork does not leave its tree."""
    above = parents()
    found, grew = {root}, True
    while grew:
        grew = False
        for pid, parent in above.items():
            if parent in found and pid not in found:
                found.add(pid)
                grew = True
    return found & (set(above) | {root})


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_tree(root: int) -> set[int]:
    """Stop everything first, pass by pass, so that no fork runs ahead of the kill; return what was killed."""
    stopped: set[int] = set()
    for _ in range(200):
        new = tree(root) - stopped
        if not new:
            break
        signal_all(new, signal.SIGSTOP)
        stopped |= new
    signal_all(stopped, signal.SIGKILL)
    return stopped


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
