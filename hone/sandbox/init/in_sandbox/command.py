"""One command: its pipes, its state, and the forked child that becomes it."""

import _ctypes
import _signal as signal  # pyright: ignore[reportMissingImports]
import posix as os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PIPE_MAX = 1 << 20  # the most an unprivileged process can make a pipe hold
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
_IGNORED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)  # by process 1; commands have the defaults
PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]


def prctl(option: int, value: int, third: "int | bytes" = 0) -> None:
    """prctl(2) through the bare C module: importing `ctypes` would cost 4 ms of every start."""
    if _ctypes.call_function(PRCTL, (option, value, third, 0, 0)):
        raise OSError("prctl failed")


class Stream:
    """One output pipe: the head and tail that are kept, and the count of all."""

    def __init__(self, keep: int, live: "Callable[[bytes], None] | None" = None) -> None:
        self.live = live  # told every piece
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
            if self.live:
                self.live(data)
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

    def __init__(
        self, request: int, pid: int, streams: list[Stream], started: float, timeout_s: float, *, alone: bool
    ) -> None:
        self.request, self.pid, self.streams = request, pid, streams
        self.alone = alone  # started when nothing else ran: what is in no other command's tree is its own
        self.started = started  # on the monotonic clock, before it could do anything
        self.deadline = self.started + timeout_s
        self.doomed: set[int] | None = None
        self.timed_out = False


class NotStarted(Exception):
    """A command that could not be started: its exit code, and what its stderr says."""

    def __init__(self, code: int, what: bytes, why: "str | Exception") -> None:
        reason = why.strerror if isinstance(why, OSError) else why
        self.code = code
        self.text = b"sandbox: %s: %s\n" % (what, str(reason).encode())


def programs(name: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    """The files that a command's name may mean, those of PATH in its order."""
    if b"/" in name:
        return [name]
    paths = [folder + b"/" + name if folder else name for folder in env.get(b"PATH", b"").split(b":")]
    return [path for path in paths if os.access(path, os.F_OK)]  # a tenth of what a failing execve costs


def execute(run: "Callable[[bytes], int]", cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """What `run` returns for the first file that it can start, in `cwd`. Raises NotStarted."""
    what = cwd
    failure: Exception | str = "No such file or directory"
    try:
        os.chdir(cwd)
        what = argv[0]
        for path in programs(what, env):
            try:
                return run(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:  # another one of this name may do
                failure = error
    except (OSError, ValueError) as error:  # ValueError: text that holds a null byte
        raise NotStarted(126, what, error) from None
    raise NotStarted(126 if isinstance(failure, PermissionError) else 127, what, failure)


def spawn(
    stdin: int, stdout: int, stderr: int, cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]
) -> int:
    """Start a command that is alone. Raises NotStarted.

    By vfork, which costs a third of a fork; but no subreaper can be made of what starts so. Process 1 stays
    in the command's directory: it names no file by a relative path, and has one thread.
    """
    to = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate((stdin, stdout, stderr))]

    def run(path: bytes) -> int:
        return os.posix_spawn(path, argv, env, file_actions=to, setsid=True, setsigdef=_IGNORED)

    return execute(run, cwd, argv, env)


def run_child(
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    limits: list[tuple[int, int]],
) -> None:
    """In a forked child: become a command that is not alone. Never returns.

    It becomes the parent of its own orphans (a subreaper), so that its tree stays together.
    """
    code = 126
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        for which, value in limits:
            resource.setrlimit(which, (value, value))
        execute(lambda path: os.execve(path, argv, env), cwd, argv, env)
    except NotStarted as failure:
        code = failure.code
        os.write(2, failure.text)
    except BaseException as error:
        os.write(2, b"sandbox: %s: %s\n" % (argv[0], str(error).encode()))
    os._exit(code)
