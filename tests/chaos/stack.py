"""The whole stack as processes: clients, a pool server, node servers; and calls that are met in the middle.

with stack.caught("exec") as (client, resume):  # a client whose command runs
    stack.pool.kill()
    stack.pool.start()
    client.finish_commands()
    assert client.ended().raised == []
stack.assert_healed()
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hone.sandbox.settings import SandboxSettings
from tests.chaos.client_process import Ended
from tests.chaos.leftovers import Namespaces, of_sandboxes, processes
from tests.chaos.servers import CLIENT_TOKEN, HONE, TOKEN, Node, Pool, frozen
from tests.services.process import reserve_port, service_folder
from tests.waiting import wait_until

CALLS = ("start", "exec", "upload", "evaluate", "close")
LEAVING_S = 150.0  # in which a client closes what it has
TTL_S = 4.0  # of leases
LONG_TTL_S = 12.0  # of those whose pool starts again: a client may pause for four before it asks it
QUEUE_S = 5.0  # that a start may wait
UPLOAD_BYTES = 8 << 20
_REPOSITORY = Path(__file__).parents[2]


class Client:
    """A process that makes one call (`tests.chaos.client_process`)."""

    def __init__(self, arguments: Sequence[str], enter: Sequence[str], log: Path, marker: str) -> None:
        self._log, self._marker = log, marker
        command = [*enter, sys.executable, "-m", "tests.chaos.client_process", *arguments]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._read()

    def call(self) -> None:
        """Let it make its call."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def commands(self) -> list[int]:
        """The processes that its commands run."""
        found: list[int] = []
        for pid in processes(self._marker):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                found += [pid] if psutil.Process(pid).cmdline()[:1] == ["sleep"] else []
        return found

    def finish_commands(self) -> None:
        for pid in self.commands():
            os.kill(pid, 9)

    def ended(self) -> Ended:
        """How its call ended."""
        return Ended.model_validate_json(self._read())

    def leave(self) -> None:
        """Let it close its provider and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(LEAVING_S) == 0, self._said()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        line = b""

        def is_whole() -> bool:
            nonlocal line
            assert self._process.stdout is not None
            line += self._process.stdout.readline() or b""
            assert line or self._process.poll() is None, self._said()
            return line.endswith(b"\n")

        wait_until(is_whole, lambda: f"the client said nothing: {self._said()}")
        return line

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@dataclass(slots=True, kw_only=True)
class Stack:
    folder: Path
    nodes: list[Node]
    pool: Pool
    settings: SandboxSettings  # of clients
    enter: tuple[str, ...] = ()  # command that runs clients in their network
    others: Callable[[], list[str]] = list  # what else is left
    engine: Callable[[], int] | None = None  # process of the Docker engine; None: the nodes have namespaces
    _namespaces: Namespaces = field(default_factory=Namespaces)

    @property
    def node(self) -> Node:
        [node] = self.nodes
        return node

    # --- calls

    def client(self, call: str) -> Client:
        """A client that is ready to make a call."""
        marker = f"{random.randrange(10**6, 10**9)}.5"
        arguments = [self.settings.model_dump_json(), call, marker]
        return Client(arguments, self.enter, self.folder / "client-log", marker)

    @contextlib.contextmanager
    def caught(self, call: str) -> Iterator[tuple[Client, Callable[[], None]]]:
        """A client in the middle of a call, of which everyone concerned knows; it is killed after the block.

        Starts, ends and uploads stand still: what would carry them out is stopped, until the function that
        is given beside the client is called, or the block ends.
        """
        client = self.client(call)
        try:
            pids = of_sandboxes(self.node.pid)
            with contextlib.ExitStack() as stack:
                if call in ("start", "close"):
                    stack.enter_context(frozen([self.engine() if self.engine else self.node.spawner()]))
                elif call == "upload":
                    stack.enter_context(frozen(pids))
                client.call()
                wait_until(
                    lambda: self._has_begun(client, call), lambda: f"{call} did not begin: {self.log()}"
                )
                self._namespaces.hold(of_sandboxes(self.node.pid), apart_from=self.node.pid)
                yield client, stack.close
        finally:
            client.kill()

    def _has_begun(self, client: Client, call: str) -> bool:
        match call:
            case "start":
                return self.node.count("starting") == 1
            case "close":
                return self.node.count("ending") == 1
            case "upload":
                return any(line.endswith("/data") for line in self.node.belongings())
            case _:
                return bool(client.commands())

    # --- what is left

    def assert_healed(self) -> None:
        """Nothing is left that has no owner; nothing at all once the servers have stopped."""
        wait_until(lambda: not self.left(), lambda: "\n".join(["left over:", *self.left(), self.log()]))

    def left(self) -> list[str]:
        found = [line for node in self.nodes for line in node.left()]
        return found + self.pool.left() + self._namespaces.used() + self.others()

    def log(self) -> str:
        return "\n".join(f"--- {server.url}\n{server.log()}" for server in (*self.nodes, self.pool))

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:  # each of them, whatever another one does
            for server in (*self.nodes, self.pool):
                stack.callback(server.stop)

    def release(self) -> None:
        """Hold no namespaces any more."""
        self._namespaces.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A network in which processes run."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()  # the command that runs others in it


_HERE = Place()


@contextlib.contextmanager
def stack(
    *,
    nodes: int = 1,
    provider: str = "namespaces",
    max_sandboxes: int = 8,
    ttl_s: float = TTL_S,
    queue_s: float = QUEUE_S,
    places: tuple[Place, Place, Place] = (_HERE, _HERE, _HERE),
    prepare: Callable[[Path], Mapping[str, str]] = lambda folder: {},
) -> Iterator[Stack]:
    """A pool over nodes, started and well; everything that it leaves is an error.

    Args:
        ttl_s: of leases.
        queue_s: that a start may wait for a place.
        places: of the nodes, of the pool and of its clients.
        prepare: called before anything starts, with the directory of it all, in which `store` and `node-N`
            are the servers'; returns variables for their environment.
    """
    with service_folder() as folder, contextlib.ExitStack() as closing:
        node_token_file, token_file = folder / "node-token", folder / "token"
        for file, token in ((node_token_file, TOKEN), (token_file, CLIENT_TOKEN)):
            file.write_text(token)
            file.chmod(0o600)
        for name in ("client/files", "pool", "store", *(f"node-{number}/run" for number in range(nodes))):
            (folder / name).mkdir(mode=0o700, parents=True)
        (folder / "client" / "files" / "data").write_bytes(bytes(UPLOAD_BYTES))
        env = dict(prepare(folder))
        made = [
            _node(folder / f"node-{number}", node_token_file, provider, max_sandboxes, places[0], env)
            for number in range(nodes)
        ]
        pool = _pool(folder, token_file, [node.url for node in made], places[1], env)
        settings = SandboxSettings(
            provider="pool",
            pool_url=pool.url,
            pool_token_file=token_file,
            lease_ttl_s=ttl_s,
            queue_timeout_s=queue_s,
            state_dir=folder / "client",
        )
        whole = Stack(folder=folder, nodes=made, pool=pool, settings=settings, enter=places[2].enter)
        closing.callback(whole.release)
        closing.callback(whole.stop)
        for server in (*made, pool):
            server.start()
        yield whole
        whole.stop()
        whole.assert_healed()


def _node(
    folder: Path, token_file: Path, provider: str, max_sandboxes: int, place: Place, env: dict[str, str]
) -> Node:
    port = reserve_port()
    command = [HONE, "node", "--provider", provider, "--max-sandboxes", str(max_sandboxes)]
    command += ["--host", place.host, "--port", str(port), "--token-file", str(token_file)]
    return Node(
        command=command,
        url=f"http://{place.host}:{port}",
        folder=folder,
        env={"XDG_RUNTIME_DIR": f"{folder}/run", **env},
        enter=place.enter,
    )


def _pool(folder: Path, token_file: Path, nodes: list[str], place: Place, env: dict[str, str]) -> Pool:
    port = reserve_port()
    command = [HONE, "pool", "--nodes", ",".join(nodes), "--store", f"{folder}/store/pool.sqlite"]
    command += ["--host", place.host, "--port", str(port), "--token-file", str(token_file)]
    command += ["--node-token-file", str(folder / "node-token")]
    return Pool(
        command=command,
        url=f"http://{place.host}:{port}",
        folder=folder / "pool",
        env=env,
        enter=place.enter,
    )
