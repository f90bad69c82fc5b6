"""One command: its output pipes, its state, and how it is started."""

import _ctypes
import _signal as signal  # pyright: ignore[reportMissingImports]
import _struct as struct
import posix as os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PIPE_MAX = 1 << 20  # largest pipe of an unprivileged process
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER_MODE = 22, 38, 2
_HEADER_BYTES = bytes.__basicsize__ - 1  # of a bytes object, before its content
_IGNORED = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)  # by process 1; commands get the defaults
_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER = {"x86_64": 317, "aarch64": 277}, 1, 8
_LIBRARY = _ctypes.dlopen(None, 0)  # pyright: ignore[reportArgumentType]
PRCTL = _ctypes.dlsym(_LIBRARY, "prctl")


def prctl(option: int, value: int, third: "int | bytes" = 0) -> None:
    """Call prctl(2) without importing `ctypes`, which would add 4 ms to every start. Raises OSError."""
    if _ctypes.call_function(PRCTL, (option, value, third, 0, 0)):
        raise OSError("prctl failed")


def protect(program: bytes, *, listen: bool) -> int:
    """Close this process to tracing, and install a seccomp program here and in all descendants.

    The program needs no privileges and adds to a filter already in force. Returns the descriptor of its
    notifications with `listen`, else -1. Raises OSError.
    """
    prctl(_PR_SET_DUMPABLE, 0)
    # struct sock_fprog; id() is an address in the bundle's CPython
    described = struct.pack("@HxxxxxxP", len(program) // 8, id(program) + _HEADER_BYTES)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if not listen:
        prctl(_PR_SET_SECCOMP, _FILTER_MODE, described)
        return -1
    call = _ctypes.dlsym(_LIBRARY, "syscall")
    number = _SECCOMP[os.uname().machine]
    listener = _ctypes.call_function(call, (number, _SET_MODE_FILTER, _NEW_LISTENER, described))
    if listener < 0:
        raise OSError("the kernel has no notifications of seccomp")
    return listener


class Stream:
    """One output pipe; keeps head and tail and counts all bytes."""

    def __init__(self, keep: int, live: "Callable[[bytes], None] | None" = None) -> None:
        self.live = live  # called with each piece
        self.fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self.half = max(1, keep // 2)
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.sink = False  # the command has ended; discard output of its background processes

    def take(self, limit: int = 65536) -> bool:
        """Read available bytes, about `limit` at most; return False at the end of the stream."""
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
    """One running command. `killed` holds the processes of its tree that were killed but not reaped yet."""

    def __init__(
        self, request: int, pid: int, streams: list[Stream], started: float, timeout_s: float, *, alone: bool
    ) -> None:
        self.request, self.pid, self.streams = request, pid, streams
        self.alone = alone  # started when nothing else ran: processes in no other command's tree are its own
        self.started = started  # monotonic, taken before the command runs
        self.deadline = self.started + timeout_s
        self.killed: set[int] | None = None
        self.timed_out = False


class NotStarted(Exception):
    """A command could not be started. Holds its exit code and the text for its stderr."""

    def __init__(self, code: int, path: bytes, error: "str | Exception") -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        self.code = code
        self.text = b"sandbox: %s: %s\n" % (path, str(reason).encode())


def programs(name: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    """Return the existing files that a command's name can mean, in the order of PATH."""
    if b"/" in name:
        return [name]
    paths = [folder + b"/" + name if folder else name for folder in env.get(b"PATH", b"").split(b":")]
    return [path for path in paths if os.access(path, os.F_OK)]  # a tenth of the cost of a failing execve


def execute(run: "Callable[[bytes], int]", cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """Return the result of `run` for the first file that it can start in `cwd`. Raises NotStarted."""
    path = cwd
    failure: Exception | str = "No such file or directory"
    try:
        os.chdir(cwd)
        path = argv[0]
        for program in programs(path, env):
            try:
                return run(program)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:  # try the next file of this name
                failure = error
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise NotStarted(126, path, error) from None
    raise NotStarted(126 if isinstance(failure, PermissionError) else 127, path, failure)


def spawn(
    stdin: int, stdout: int, stderr: int, cwd: bytes, argv: list[bytes], env: dict[bytes, bytes]
) -> int:
    """Start a command that runs alone, and return its pid. Raises NotStarted.

    Uses vfork, which costs a third of fork but cannot make the command a subreaper. Process 1 stays in the
    command's directory, which is safe: it has one thread and uses no relative paths.
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
    """In a forked child: become a command that does not run alone. Never returns.

    It becomes the subreaper of its orphans, so that they stay in its tree.
    """
    code = 126
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for which, value in limits:
            resource.setrlimit(which, (value, value))
        execute(lambda path: os.execve(path, argv, env), cwd, argv, env)
    except NotStarted as failure:
        code = failure.code
        os.write(2, failure.text)
    except BaseException as error:
        os.write(2, b"sandbox: %s: %s\n" % (argv[0], str(error).encode()))
    os._exit(code)
