"""What the pool adds to a start and to a command, how many leases it gives, and whether it loses any.

    python benchmarks/pool.py [--samples 300] [--leases 3000] [--storm 20000]

Servers are processes of their own, pinned to one core; the load comes from the other. Sandboxes do nothing
(a no-op provider behind a real node server), so that all that is measured is added. Beside them, with the
same load, run Flask servers with a thread per request that do the same work. Then leases by the thousand go
over eight simulated nodes of which some die, lose replies or slow down all the time, and for clients that may
die. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import httpx
import psutil
import uvloop

from benchmarks.parts.chance import Storm
from benchmarks.parts.idle_node import TOKEN
from benchmarks.parts.lean import Script, drive, request
from hone.sandbox import SandboxSpec
from hone.sandbox.client.api import NodeClient
from hone.sandbox.client.provider import PoolProvider
from hone.sandbox.remote.wire import CreateRequest, SpecBody
from hone.sandbox.settings import SandboxSettings
from tests.services.process import reserve_port

CLIENT_TOKEN = "client"
AT_ONCE = 24  # requests under way in the measurements of rates
REQUEST = CreateRequest(spec=SpecBody(), ttl_s=3600.0)
HONE = str(Path(sys.executable).with_name("hone"))
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    process: psutil.Process

    def cpu_ms(self) -> float:
        """Processor time that it has used."""
        times = self.process.cpu_times()
        return (times.user + times.system) * 1e3


@contextlib.contextmanager
def server(folder: Path, core: int, *command: str) -> Iterator[Server]:
    """A server as a process on one core; PORT in the command is its port."""
    port = reserve_port()
    words = [word.replace("PORT", str(port)) for word in command]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=Path(__file__).parents[1])
    try:
        os.sched_setaffinity(process.pid, {core})
        started = Server(url=f"http://127.0.0.1:{port}", process=psutil.Process(process.pid))
        _wait_for(started.url, process)
        yield started
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz").status_code in (200, 404):
                return
        time.sleep(0.05)
    raise SystemExit(f"no server answers at {url}; exit code {process.returncode}")


@contextlib.contextmanager
def hone_servers(folder: Path, node_core: int) -> Iterator[tuple[Server, Server]]:
    """A node server over sandboxes that do nothing, and a pool over it."""
    for name, token in (("token", CLIENT_TOKEN), ("node-token", TOKEN)):
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    tokens = ("--token-file", str(folder / "token"), "--node-token-file", str(folder / "node-token"))
    state = Path(tempfile.mkdtemp(dir=folder))
    node_command = (sys.executable, "-m", "benchmarks.parts.idle_node", "PORT", str(state / "node"))
    pool_command = (HONE, "pool", "--port", "PORT", "--store", str(state / "pool.sqlite"))
    with (
        server(folder, node_core, *node_command) as node,
        server(folder, SERVER_CORE, *pool_command, *tokens, "--nodes", node.url) as pool,
    ):
        yield node, pool


# --- what is added


async def measure_added(node: str, pool: str, folder: Path, samples: int) -> dict[str, float]:
    """Medians in ms of one request at a time: a start through the pool, and by the node alone; a command."""
    settings = SandboxSettings(provider="pool", pool_url=pool, pool_token_file=folder / "token")
    starts: list[float] = []
    node_starts: list[float] = []
    execs: list[float] = []
    async with PoolProvider(settings) as provider, aiohttp.ClientSession() as session:
        client = NodeClient(session, node, TOKEN)
        for number in range(samples):
            took, sandbox = await timed_ms(lambda: provider.start(SandboxSpec()))
            starts.append(took)
            execs.append((await timed_ms(lambda box=sandbox: box.exec(["true"])))[0])
            await sandbox.close()
            took, made = await timed_ms(lambda key=f"n{number}": client.create(REQUEST, key=key))
            node_starts.append(took)
            await client.destroy(made.id)
    start, node_start = statistics.median(starts), statistics.median(node_starts)
    return {
        "added_exec_ms_p50": round(statistics.median(execs), 2),
        "added_start_ms_p50": round(start, 2),
        "added_start_ms_p50_by_the_pool": round(start - node_start, 2),
    }


async def timed_ms(action: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = await action()
    return (time.perf_counter() - began) * 1e3, result


# --- how many


def rate(of: Server, name: str, count: int, scripts: Iterator[Script]) -> dict[str, float]:
    """Scripts per second with AT_ONCE of them at a time; and the processor time that one costs the server.

    The processor time does not depend on what else runs on the machine.
    """
    used, began = of.cpu_ms(), time.perf_counter()
    drive(of.url, scripts, AT_ONCE)
    seconds = time.perf_counter() - began
    return {
        f"{name}s_per_s": round(count / seconds, 1),
        f"{name}_cpu_ms": round((of.cpu_ms() - used) / count, 3),
    }


def rate_of_leases(of: Server, count: int) -> dict[str, float]:
    """Whole leases: allocate, heartbeat, close."""

    def lease(number: int) -> Script:
        name = f"l{number}"
        asked = json.dumps({"lease_id": name, "owner": "benchmark", "spec": {}})
        made = json.loads((yield request("POST", "/v1/leases", CLIENT_TOKEN, asked)))
        beats = json.dumps({"leases": [{"lease_id": name, "generation": made["generation"]}]})
        renewed = json.loads((yield request("POST", "/v1/heartbeats", CLIENT_TOKEN, beats)))
        assert renewed["lost"] == []
        yield request("DELETE", f"/v1/leases/{name}", CLIENT_TOKEN)

    return rate(of, "lease", count, map(lease, range(count)))


def rate_of_execs(of: Server, path: str, count: int) -> dict[str, float]:
    """Commands of one sandbox, asked for directly."""
    asked = json.dumps({"command": ["true"], "timeout_s": 10})

    def execute(number: int) -> Script:
        reply = yield request("POST", path, TOKEN, asked, f"Idempotency-Key: k{number}\r\n")
        assert json.loads(reply)["exit_code"] == 0

    return rate(of, "exec", count, map(execute, range(count)))


def rate_of_node_execs(of: Server, count: int) -> dict[str, float]:
    return rate_of_execs(of, f"/v1/sandboxes/{asyncio.run(make_sandbox(of))}/exec", count)


async def make_sandbox(of: Server) -> str:
    """The id of a sandbox on a node."""
    async with aiohttp.ClientSession() as session:
        return (await NodeClient(session, of.url, TOKEN).create(REQUEST, key="execs")).id


# --- all of it


def measure(folder: Path, samples: int, leases: int) -> tuple[dict[str, float], dict[str, float]]:
    """Figures of Hone, and of the Flask servers."""
    run = asyncio.Runner(loop_factory=uvloop.new_event_loop).run
    peer = (sys.executable, "-m", "benchmarks.peers.lease_server")
    metrics: dict[str, float] = {}
    flask: dict[str, float] = {}
    with hone_servers(folder, LOAD_CORE) as (node, pool):
        metrics |= run(measure_added(node.url, pool.url, folder, samples))
        metrics |= rate_of_leases(pool, leases)
        store = str(folder / "flask.sqlite")
        with server(folder, SERVER_CORE, *peer, "PORT", node.url, store) as other:
            flask |= rate_of_leases(other, leases // 4)
    with hone_servers(folder, SERVER_CORE) as (node, _):
        metrics |= rate_of_node_execs(node, leases)
    with server(folder, SERVER_CORE, *peer, "PORT") as other:
        flask |= rate_of_execs(other, "/exec", leases)
    return metrics, flask


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=300, help="starts and commands for the medians")
    parser.add_argument("--leases", type=int, default=3000, help="leases and commands for the rates")
    parser.add_argument("--storm", type=int, default=20_000, help="leases over nodes that fail")
    parser.add_argument("--seed", type=int, default=0, help="of the storm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.sched_setaffinity(0, {LOAD_CORE})
        metrics, flask = measure(Path(name), options.samples, options.leases)
        os.sched_setaffinity(0, CORES)
        logging.disable(logging.WARNING)  # each of the faults would be told
        storm = asyncio.run(Storm(Path(name) / "storm.sqlite", options.storm, options.seed).run())
    found = {
        f"storm_{name}": value
        for name, value in dataclasses.asdict(storm).items()
        if name not in ("lost", "doubled", "leaked")
    }
    metrics |= {"lost": storm.lost, "doubled": storm.doubled, "leaked": storm.leaked, **found}
    for who, figures in {"hone": metrics, "flask": flask}.items():
        print(f"{who:8}", "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    ratios = {
        f"{key}_over_flask": round(metrics[key] / value if "per_s" in key else value / metrics[key], 2)
        for key, value in flask.items()
    }
    print(json.dumps({"name": "pool", "metrics": metrics, "peers": {"flask": flask}, "ratios": ratios}))


if __name__ == "__main__":
    main()
