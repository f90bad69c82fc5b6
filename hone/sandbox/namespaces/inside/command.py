"""One command: its pipes, its state, and the forked child that becomes it."""

import _ctypes
import _signal as signal  # pyright: ignore[reportMissingImports]
import os
import resource
import time

PIPE_MAX = 1 << 20  # the most an unprivileged process can make a pipe hold
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
