"""Process 1 of a sandbox: starts commands, limits their output, kills their trees, reads and writes files.

Invariants:
- signals from inside have no effect: process 1 receives only those with a handler (SIGCHLD);
- it is not dumpable, so no process inside can trace it, read its memory or take its descriptors;
- no command inherits its channel;
- its replies never exceed the limits that the host gave.
"""

import _signal as signal  # pyright: ignore[reportMissingImports]
import _stat as stat
import errno
import posix as os
import resource
import select
import sys
import time

from . import files, wire
from .command import PIPE_MAX, Job, NotStarted, Stream, protect, run_child, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hone.utils import processes
else:
    from . import processes  # the bundle holds a copy of that file

OUTGOING_MAX = 8 << 20  # unsent bytes above which no request is read
WATCH_S = 0.1  # period of the memory watchdog
OPEN_FILES = 8192  # of one process


class Init:
    def __init__(
        self,
        source: int,
        sink: int,
        oom_score: int,
        notifications: int,
        memory_kib: int,
        pids: int,
        file_mib: int,
        sockets: int,
    ) -> None:
        self.source, self.sink = source, sink  # the channel: requests in, replies out
        self.memory_kib = memory_kib  # enforced here when no cgroup does; else 0
        wanted = (
            (resource.RLIMIT_DATA, memory_kib << 10),
            (resource.RLIMIT_NPROC, pids),  # counted in the sandbox's own user namespace
            (resource.RLIMIT_FSIZE, file_mib << 20),
        )
        self.limits = [(which, lowered(which, value)) for which, value in wanted if value]
        files_max = lowered(resource.RLIMIT_NOFILE, OPEN_FILES)  # inherited by commands
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.jobs: dict[int, Job] = {}  # by request
        self.stdins: dict[int, int] = {}  # request -> memory file
        self.streams: dict[int, Stream] = {}  # by descriptor
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.oom_score = oom_score
        self.wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poll = select.epoll()
        self.poll.register(source, select.EPOLLIN)
        self.poll.register(sink, 0)
        self.poll.register(self.wake, select.EPOLLIN)
        self.notifications, self.sockets = notifications, sockets
        if notifications >= 0:
            self.poll.register(notifications, select.EPOLLIN)
        self.mask = (select.EPOLLIN, 0)  # of source and sink

    def serve(self) -> None:
        self.send(wire.READY_KIND, 0, b"")
        while True:
            for fd, event in self.poll.poll(self.next_timeout()):
                if fd == self.source:
                    self.receive()
                elif fd == self.sink:
                    if event & (select.EPOLLERR | select.EPOLLHUP):
                        os._exit(0)  # the host is gone; with process 1 all processes end
                    self.flush()
                elif fd == self.wake:
                    try:
                        os.read(self.wake, 4096)
                    except BlockingIOError:
                        continue
                elif fd == self.notifications:
                    self.answer()
                elif fd in self.streams and not self.streams[fd].take():
                    self.drop(self.streams[fd])
            self.reap()
            self.expire()

    def next_timeout(self) -> float | None:
        """Return seconds until the next deadline; None when there is none."""
        now = time.monotonic()
        waits = [job.deadline - now for job in self.jobs.values() if job.killed is None]
        if self.memory_kib:
            waits.append(WATCH_S)
        if any(job.killed is not None for job in self.jobs.values()):
            waits.append(0.02)
        return max(0.0, min(waits)) if waits else None

    def answer(self) -> None:
        """Answer a command that opens a socket. Imports it here, because most commands open none."""
        from . import sockets

        sockets.answer(self.notifications, self.sockets)

    # --- the channel

    def send(self, kind: int, request: int, body: bytes) -> None:
        self.outgoing += wire.HEADER.pack(len(body), kind, request)
        self.outgoing += body
        self.flush()

    def flush(self) -> None:
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.sink, self.outgoing[: wire.CHUNK])]
        except BlockingIOError:
            pass  # the channel is full; the mask below waits until it is not
        except OSError:
            os._exit(0)  # the host is gone; with process 1 all processes end
        reading = select.EPOLLIN if len(self.outgoing) < OUTGOING_MAX else 0
        mask = (reading, select.EPOLLOUT if self.outgoing else 0)
        if mask != self.mask:
            self.mask = mask
            self.poll.modify(self.source, mask[0])
            self.poll.modify(self.sink, mask[1])
            for stream in self.streams.values():
                if stream.live:  # a slow reader blocks the command instead of filling memory
                    self.poll.modify(stream.fd, reading)

    def receive(self) -> None:
        try:
            data = os.read(self.source, wire.CHUNK)
        except BlockingIOError:
            return
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)
        self.incoming += data
        offset = 0
        while len(self.incoming) - offset >= wire.HEADER.size:
            size, kind, request = wire.HEADER.unpack_from(self.incoming, offset)
            if len(self.incoming) - offset < wire.HEADER.size + size:
                break
            body = bytes(self.incoming[offset + wire.HEADER.size : offset + wire.HEADER.size + size])
            offset += wire.HEADER.size + size
            try:
                self.handle(kind, request, body)
            except OSError as error:
                self.send(wire.ERROR_KIND, request, wire.LENGTH.pack(error.errno or errno.EIO))
            except ValueError:  # a path with a null byte
                self.send(wire.ERROR_KIND, request, wire.LENGTH.pack(errno.EINVAL))
        del self.incoming[:offset]

    def handle(self, kind: int, request: int, body: bytes) -> None:
        if kind == wire.EXEC_KIND:
            self.start(request, body)
        elif kind == wire.STDIN_KIND:
            fd = self.stdins.get(request)
            if fd is None:
                fd = self.stdins[request] = os.memfd_create("stdin", os.MFD_CLOEXEC)
            while body:
                body = body[os.write(fd, body) :]
        elif kind == wire.CANCEL_KIND:
            self.cancel(request)
        elif kind in files.HANDLERS:
            self.send(wire.DATA_KIND, request, files.HANDLERS[kind](body))
        elif kind == wire.KILL_KIND:
            processes.send_signal({-1}, signal.SIGKILL)  # all but process 1
            self.send(wire.DATA_KIND, request, b"")
        elif kind == wire.STATE_KIND:
            self.send(wire.DATA_KIND, request, self.find_state(wire.unpack(body)))

    def find_state(self, mounts: list[bytes]) -> bytes:
        """Return a name of what the sandbox has besides files and these mounts; b"": nothing."""
        if self.jobs or not nothing_runs():
            return b"a process"
        from . import state  # few sandboxes are asked

        return state.find(mounts)

    # --- commands

    def start(self, request: int, body: bytes) -> None:
        timeout_s, keep, flags = wire.EXEC.unpack_from(body)
        cwd, count, *words = wire.unpack(body, wire.EXEC.size)
        argv, pairs = words[: int(count)], words[int(count) :]
        env = dict(zip(pairs[::2], pairs[1::2], strict=True))
        stdin = self.stdins.pop(request, None)
        if stdin is not None:
            os.lseek(stdin, 0, 0)
        kinds = [wire.STDOUT_KIND] if flags & wire.MERGE_FLAG else [wire.STDOUT_KIND, wire.STDERR_KIND]
        streams = [
            Stream(keep, self.forwarder(request, kind) if flags & wire.LIVE_FLAG else None) for kind in kinds
        ]
        source = self.null if stdin is None else stdin
        command = (source, streams[0].write_end, streams[-1].write_end, cwd, argv, env)
        alone = not self.limits and nothing_runs()
        pid, failed, started = -1, 0, time.monotonic()
        os.write(self.oom_score, b"800")  # inherited: the kernel kills commands before process 1
        try:
            pid = spawn(*command) if alone else os.fork()
        except NotStarted as failure:
            os.write(streams[-1].write_end, failure.text)
            failed = failure.code
        except OSError as error:  # the limit on processes is reached
            os.write(streams[-1].write_end, b"sandbox: cannot start a process: %s\n" % str(error).encode())
            failed = 126
        if pid == 0:
            run_child(*command, self.limits)
        os.write(self.oom_score, b"0")
        if stdin is not None:
            os.close(stdin)
        for stream in streams:
            os.close(stream.write_end)
            self.streams[stream.fd] = stream
            self.poll.register(stream.fd, select.EPOLLIN)
        job = self.jobs[request] = Job(request, pid, streams, started, timeout_s, alone=alone)
        if failed:
            self.finish(job, failed)

    def forwarder(self, request: int, kind: int) -> "Callable[[bytes], None]":
        return lambda data: self.send(kind, request, data)

    def cancel(self, request: int) -> None:
        stdin = self.stdins.pop(request, None)
        if stdin is not None:
            os.close(stdin)
        job = self.jobs.get(request)
        if job and job.killed is None:
            job.killed = self.kill(job)

    def kill(self, job: Job) -> set[int]:
        """Kill a command and its descendants; return the killed processes."""
        others = {other.pid for other in self.jobs.values() if other is not job}
        if not job.alone:
            root = frozenset({job.pid})  # the subreaper of all its descendants
            return processes.kill_selected(lambda seen: seen.tree(root), last=root, may_stop_all=True)
        if others:
            return processes.kill_selected(
                lambda seen: set(seen.parents) - {1} - seen.tree(others), may_stop_all=True
            )
        return processes.kill_all_but_init()

    def reap(self) -> None:
        """Collect dead children: commands and orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for job in list(self.jobs.values()):
                if job.killed is not None:
                    job.killed.discard(pid)
                elif job.pid == pid:
                    self.finish(job, os.waitstatus_to_exitcode(status))

    def expire(self) -> None:
        """Kill commands past their deadline; report a killed tree once its last process is gone."""
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if job.killed is None and now >= job.deadline:
                job.timed_out = True
                job.killed = self.kill(job)
            if job.killed is not None:
                job.killed = {pid for pid in job.killed if processes.exists(pid)}
                if not job.killed:
                    self.finish(job, -9)
        if self.memory_kib:
            self.watch_memory()

    def finish(self, job: Job, code: int) -> None:
        seconds = time.monotonic() - job.started
        del self.jobs[job.request]
        for stream in job.streams:
            # its descriptor may belong to another stream meanwhile
            if self.streams.get(stream.fd) is stream and not stream.take(PIPE_MAX):
                self.drop(stream)
        if job.timed_out:
            code = -1
        elif code < 0:
            code = 128 - code
        out, err = job.streams[0], (job.streams[1] if len(job.streams) > 1 else None)
        kept = out.kept()
        body = wire.RESULT.pack(code, job.timed_out, out.total, err.total if err else 0, seconds, len(kept))
        self.send(wire.RESULT_KIND, job.request, body + kept + (err.kept() if err else b""))
        for stream in job.streams:
            stream.sink = True
            stream.head, stream.tail = bytearray(), bytearray()

    def drop(self, stream: Stream) -> None:
        self.poll.unregister(stream.fd)
        del self.streams[stream.fd]
        os.close(stream.fd)

    def watch_memory(self) -> None:
        """Without a memory cgroup: kill the largest process while the sum is above the limit."""
        sizes = {pid: processes.resident_kib(pid) for pid in processes.Snapshot().parents if pid != 1}
        if sum(sizes.values()) > self.memory_kib:
            processes.send_signal({max(sizes, key=lambda pid: sizes[pid])}, signal.SIGKILL)


def nothing_runs() -> bool:
    """Return whether process 1 has no child, zombies included; all processes inside descend from it."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def lowered(which: int, value: int) -> int:
    """Return `value`, at most the current hard limit, which this process cannot raise."""
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def main(programs: "tuple[bytes, bytes]") -> None:
    """Serve the channel: the socket at descriptor 0, or the pipes at 0 and 1 (an engine's attach stream).

    Arguments: a label for the host's process list; limits to enforce here, 0 for none: KiB of memory,
    processes, MiB of one file, sockets; optionally the loopback port of the proxy and its socket.

    Args:
        programs: for seccomp, without and with notifications of new sockets.
    """
    os.closerange(3, 1 << 16)  # inherited descriptors
    source = os.dup(0)  # descriptors made by Python close on exec
    sink = os.dup(0 if stat.S_ISSOCK(os.fstat(0).st_mode) else 1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.set_blocking(source, False)
    os.set_blocking(sink, False)
    oom_score = os.open(
        "/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC
    )  # cannot be opened once not dumpable
    os.umask(0o022)
    memory_kib, pids, file_mib, sockets = map(int, sys.argv[2:6])
    if len(sys.argv) > 6:
        from . import relay

        # this process cannot answer its own notification, and the relay opens no such socket afterwards
        proxy = relay.listen(int(sys.argv[6]))
        notifications = protect(programs[sockets > 0], listen=sockets > 0)
        relay.start(proxy, sys.argv[7])
    else:
        notifications = protect(programs[sockets > 0], listen=sockets > 0)
    Init(source, sink, oom_score, notifications, memory_kib, pids, file_mib, sockets).serve()
