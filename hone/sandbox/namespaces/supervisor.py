"""Process 1 of a sandbox: starts commands, caps their output at the source, kills their trees, moves files.

It runs as a lone script on a bare interpreter (`python -I -S`), so it imports built-in modules only: each
further import would be paid at every start. The host imports this module too, for the wire format.

The rules that must not break:
- no signal from inside reaches it: as process 1 it takes only signals it has handlers for (SIGCHLD);
- it is not dumpable, so nothing inside can trace it, read its memory or take its descriptors;
- nothing it sends can exceed the caps the host gave it.

A frame is `HEADER` (length of the body, kind, request id) and the body. Fields in a body are length-prefixed.
"""

import _ctypes
import _signal as signal  # pyright: ignore[reportMissingImports]
import _struct as struct
import errno
import os
import resource
import select
import stat
import sys
import time

HEADER = struct.Struct("!IBI")  # body length, kind, request id
EXEC = struct.Struct(
    "!dIB"
)  # timeout s, bytes kept per stream, merge stderr; then fields cwd, argc, argv, env
RESULT = struct.Struct(
    "!iBQQdI"
)  # exit code, timed out, stdout total, stderr total, seconds, kept stdout bytes
READ = struct.Struct("!QI")  # offset, size; then path
DATA = struct.Struct("!Q")  # size of the whole file; then the chunk
WRITE = struct.Struct("!QI")  # offset, mode; then fields path, chunk
ENTRY = struct.Struct("!cIQ")  # kind (f, d, l, other ?), mode, size; then fields name, link target
LENGTH = struct.Struct("!I")

STDIN_KIND, EXEC_KIND, CANCEL_KIND, READ_KIND, WRITE_KIND, LIST_KIND, MKDIR_KIND, LINK_KIND = range(1, 9)
READY_KIND, RESULT_KIND, DATA_KIND, ERROR_KIND = range(20, 24)

CHUNK = 1 << 20  # bytes of a file moved per request
PIPE_MAX = 1 << 20  # the most an unprivileged process can make a pipe hold
OUTGOING_MAX = 8 << 20  # above this many unsent bytes no further request is read
WATCH_S = 0.1  # period of the memory watchdog


def pack(*fields: bytes) -> bytes:
    """Length-prefix and join byte strings."""
    return b"".join(LENGTH.pack(len(field)) + field for field in fields)


def unpack(body: bytes, offset: int = 0) -> list[bytes]:
    """The fields of `body` from `offset` on."""
    fields: list[bytes] = []
    while offset < len(body):
        (size,) = LENGTH.unpack_from(body, offset)
        offset += 4
        if offset + size > len(body):
            raise ValueError("a field runs past its frame")
        fields.append(bytes(body[offset : offset + size]))
        offset += size
    return fields


PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]


def prctl(option: int, value: int) -> None:
    """prctl(2) through the bare C module: importing `ctypes` would cost 4 ms of every start."""
    if _ctypes.call_function(PRCTL, (option, value, 0, 0, 0)):
        raise OSError("prctl failed")


class Stream:
    """One output pipe: the head and tail that are kept, and the count of all."""

    def __init__(self, keep: int) -> None:
        self.fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self.half = max(1, keep // 2)
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.sink = False  # the command has ended; what its background processes write is thrown away

    def take(self, limit: int = 65536) -> bool:
        """Read what is there, at most `limit` bytes. False at the end of the stream."""
        while limit > 0:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            limit -= len(data)
            if self.sink:
                continue
            self.total += len(data)
            room = self.half - len(self.head)
            if room > 0:
                self.head += data[:room]
                data = data[room:]
            self.tail += data
            if len(self.tail) > 4 * self.half:
                del self.tail[: -self.half]
        return True

    def kept(self) -> bytes:
        return bytes(self.head + self.tail[-self.half :])


class Job:
    """One command. `doomed` holds the processes of its tree that were killed and not yet reaped."""

    def __init__(self, request: int, pid: int, streams: list[Stream], timeout_s: float) -> None:
        self.request, self.pid, self.streams = request, pid, streams
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.doomed: set[int] | None = None
        self.timed_out = False


def processes() -> dict[int, int]:
    """pid -> parent pid of all processes inside."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    line = file.read(512)
            except OSError:
                continue
            parents[int(name)] = int(line[line.rindex(b")") + 2 :].split()[1])
    return parents


def tree(root: int) -> set[int]:
    """`root` and its descendants. A command is a subreaper, so a double fork does not leave its tree."""
    parents = processes()
    found, grew = {root}, True
    while grew:
        grew = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                grew = True
    return found & (set(parents) | {root})


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


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """execvpe, without the import that `os.execvpe` makes."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    for directory in env.get(b"PATH", b"").split(b":"):
        try:
            os.execve(os.path.join(directory, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise FileNotFoundError


def run_child(
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    limits: list[tuple[int, int]],
) -> None:
    """In the forked child: become the command. Never returns."""
    code = 126
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if limits:
            for which, value in limits:
                resource.setrlimit(which, (value, value))
        os.chdir(cwd)
        code = 127
        execute(argv, env)
    except FileNotFoundError:
        os.write(2, b"sandbox: %s: No such file or directory\n" % (argv[0] if code == 127 else cwd))
        os._exit(code)
    except BaseException as error:
        os.write(2, b"sandbox: %s: %s\n" % (argv[0], str(error).encode()))
    os._exit(126)


class Supervisor:
    def __init__(self, channel: int, oom_score: int, memory_kib: int, pids: int) -> None:
        self.channel = channel
        self.memory_kib = memory_kib  # watched here when no cgroup holds it; else 0
        self.limits: list[tuple[int, int]] = []
        if memory_kib:
            self.limits.append((resource.RLIMIT_DATA, memory_kib * 1024))
        if pids:
            self.limits.append((resource.RLIMIT_NPROC, pids))  # counted in the sandbox's own user namespace
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
        self.poll.register(channel, select.EPOLLIN)
        self.poll.register(self.wake, select.EPOLLIN)
        self.mask = select.EPOLLIN

    def serve(self) -> None:
        self.send(READY_KIND, 0, b"")
        while True:
            for fd, event in self.poll.poll(self.patience()):
                if fd == self.channel:
                    if event & select.EPOLLOUT:
                        self.flush()
                    if event & (select.EPOLLIN | select.EPOLLHUP):
                        self.receive()
                elif fd == self.wake:
                    try:
                        os.read(self.wake, 4096)
                    except BlockingIOError:
                        continue
                elif fd in self.streams and not self.streams[fd].take():
                    self.drop(self.streams[fd])
            self.reap()
            self.expire()

    def patience(self) -> float | None:
        """Seconds until something must be done without an event."""
        now = time.monotonic()
        waits = [job.deadline - now for job in self.jobs.values() if job.doomed is None]
        if self.memory_kib:
            waits.append(WATCH_S)
        if any(job.doomed is not None for job in self.jobs.values()):
            waits.append(0.02)
        return max(0.0, min(waits)) if waits else None

    # --- the channel

    def send(self, kind: int, request: int, body: bytes) -> None:
        self.outgoing += HEADER.pack(len(body), kind, request)
        self.outgoing += body
        self.flush()

    def flush(self) -> None:
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.channel, self.outgoing[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            os._exit(0)  # the host is gone, and with process 1 everything inside
        mask = select.EPOLLOUT if self.outgoing else 0
        if len(self.outgoing) < OUTGOING_MAX:
            mask |= select.EPOLLIN
        if mask != self.mask:
            self.mask = mask
            self.poll.modify(self.channel, mask)

    def receive(self) -> None:
        try:
            data = os.read(self.channel, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)
        self.incoming += data
        offset = 0
        while len(self.incoming) - offset >= HEADER.size:
            size, kind, request = HEADER.unpack_from(self.incoming, offset)
            if len(self.incoming) - offset < HEADER.size + size:
                break
            body = bytes(self.incoming[offset + HEADER.size : offset + HEADER.size + size])
            offset += HEADER.size + size
            try:
                self.handle(kind, request, body)
            except OSError as error:
                self.send(ERROR_KIND, request, LENGTH.pack(error.errno or errno.EIO))
        del self.incoming[:offset]

    def handle(self, kind: int, request: int, body: bytes) -> None:
        if kind == EXEC_KIND:
            self.start(request, body)
        elif kind == STDIN_KIND:
            fd = self.stdins.get(request)
            if fd is None:
                fd = self.stdins[request] = os.memfd_create("stdin", os.MFD_CLOEXEC)
            while body:
                body = body[os.write(fd, body) :]
        elif kind == CANCEL_KIND:
            self.cancel(request)
        elif kind == READ_KIND:
            self.read(request, body)
        elif kind == WRITE_KIND:
            self.write(request, body)
        elif kind == LIST_KIND:
            self.send(DATA_KIND, request, list_entries(body))
        elif kind == MKDIR_KIND:
            os.makedirs(body, 0o755, exist_ok=True)
            self.send(DATA_KIND, request, b"")
        elif kind == LINK_KIND:
            target, path = unpack(body)
            os.symlink(target, path)
            self.send(DATA_KIND, request, b"")

    # --- commands

    def start(self, request: int, body: bytes) -> None:
        timeout_s, keep, merge = EXEC.unpack_from(body)
        cwd, count, *words = unpack(body, EXEC.size)
        argv, pairs = words[: int(count)], words[int(count) :]
        env = dict(zip(pairs[::2], pairs[1::2], strict=True))
        stdin = self.stdins.pop(request, None)
        if stdin is not None:
            os.lseek(stdin, 0, 0)
        streams = [Stream(keep)] if merge else [Stream(keep), Stream(keep)]
        failure = b""
        try:
            os.write(self.oom_score, b"800")  # inherited: a command dies before the supervisor does
            pid = os.fork()
        except OSError as error:  # the commands before this one used up the limit on processes
            failure = b"sandbox: cannot start a process: " + str(error).encode() + b"\n"
            pid = -1
        if pid == 0:
            source = self.null if stdin is None else stdin
            run_child(source, streams[0].write_end, streams[-1].write_end, cwd, argv, env, self.limits)
        os.write(self.oom_score, b"0")
        if failure:
            os.write(streams[-1].write_end, failure)
        if stdin is not None:
            os.close(stdin)
        for stream in streams:
            os.close(stream.write_end)
            self.streams[stream.fd] = stream
            self.poll.register(stream.fd, select.EPOLLIN)
        job = self.jobs[request] = Job(request, pid, streams, timeout_s)
        if failure:
            self.finish(job, 126)

    def cancel(self, request: int) -> None:
        stdin = self.stdins.pop(request, None)
        if stdin is not None:
            os.close(stdin)
        job = self.jobs.get(request)
        if job and job.doomed is None:
            job.doomed = kill_tree(job.pid)

    def reap(self) -> None:
        """Collect every dead child: commands, and orphans that fell to process 1."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for job in list(self.jobs.values()):
                if job.doomed is not None:
                    job.doomed.discard(pid)
                elif job.pid == pid:
                    self.finish(job, os.waitstatus_to_exitcode(status))

    def expire(self) -> None:
        """Kill what is over its time; report a killed tree once the last of it is gone."""
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if job.doomed is None and now >= job.deadline:
                job.timed_out = True
                job.doomed = kill_tree(job.pid)
            if job.doomed is not None:
                job.doomed = {pid for pid in job.doomed if os.path.exists(f"/proc/{pid}")}
                if not job.doomed:
                    self.finish(job, -9)
        if self.memory_kib:
            self.watch_memory()

    def finish(self, job: Job, code: int) -> None:
        seconds = time.monotonic() - job.started
        del self.jobs[job.request]
        for stream in job.streams:
            if stream.fd in self.streams and not stream.take(PIPE_MAX):
                self.drop(stream)
        if job.timed_out:
            code = -1
        elif code < 0:
            code = 128 - code
        out, err = job.streams[0], (job.streams[1] if len(job.streams) > 1 else None)
        kept = out.kept()
        body = RESULT.pack(code, job.timed_out, out.total, err.total if err else 0, seconds, len(kept))
        self.send(RESULT_KIND, job.request, body + kept + (err.kept() if err else b""))
        for stream in job.streams:
            stream.sink = True
            stream.head, stream.tail = bytearray(), bytearray()

    def drop(self, stream: Stream) -> None:
        self.poll.unregister(stream.fd)
        del self.streams[stream.fd]
        os.close(stream.fd)

    def watch_memory(self) -> None:
        """Where no cgroup holds memory: kill the largest process while the sum is over the limit."""
        sizes = {pid: resident_kib(pid) for pid in processes() if pid != 1}
        if sum(sizes.values()) > self.memory_kib:
            signal_all({max(sizes, key=lambda pid: sizes[pid])}, signal.SIGKILL)

    # --- files; all of it with the rights and the view of a command

    def read(self, request: int, body: bytes) -> None:
        offset, size = READ.unpack_from(body)
        fd = os.open(body[READ.size :], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                raise OSError(errno.EISDIR, "is a directory")
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = os.pread(fd, min(size, CHUNK), offset)
        finally:
            os.close(fd)
        self.send(DATA_KIND, request, DATA.pack(info.st_size) + data)

    def write(self, request: int, body: bytes) -> None:
        offset, mode = WRITE.unpack_from(body)
        path, data = unpack(body, WRITE.size)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        if offset == 0:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        fd = os.open(path, flags, mode)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if offset == 0:
                os.ftruncate(fd, 0)
                os.fchmod(fd, mode)
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(fd)
        self.send(DATA_KIND, request, b"")


def list_entries(path: bytes) -> bytes:
    """Pack what `path` is ("" names it), and what a directory holds; links inside are not followed."""
    info = os.stat(path)
    packed = [pack_entry(b"", info, b"")]
    if stat.S_ISDIR(info.st_mode):
        with os.scandir(path) as entries:
            for entry in entries:
                link = os.readlink(entry.path) if entry.is_symlink() else b""
                packed.append(pack_entry(entry.name, entry.stat(follow_symlinks=False), link))
    return b"".join(packed)


def pack_entry(name: bytes, info: os.stat_result, link: bytes) -> bytes:
    kinds = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), b"?")
    return pack(ENTRY.pack(kind, stat.S_IMODE(info.st_mode), info.st_size), name, link)


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


def main() -> None:
    """Arguments: a label for the host's process list, KiB of memory and processes allowed (0: not here)."""
    os.closerange(3, 1 << 16)  # whatever else was inherited
    channel = os.dup(0)  # descriptors made by Python close on exec
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.set_blocking(channel, False)
    oom_score = os.open(
        "/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC
    )  # closed to us after the next line
    prctl(PR_SET_DUMPABLE, 0)
    os.umask(0o022)
    Supervisor(channel, oom_score, int(sys.argv[2]), int(sys.argv[3])).serve()


if __name__ == "__main__":
    main()
