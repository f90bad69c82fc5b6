"""Whether node, pool and gateway keep serving while clients attack them.

    python benchmarks/servers_under_attack.py [--messages 10000] [--seconds 8] [--seed 0]

Node and pool, then a gateway, run as processes of their own, over real sandboxes and over an engine that
takes no time. Each is attacked in phases: messages that nearly are valid, half of them with the token; 2,000
connections without a request; ten bodies of 40 MiB at once, without and with the token; the largest bodies
that it accepts, valid ones and trees of empty lists. Meanwhile another process asks for /healthz every 20 ms,
and honest clients start sandboxes and run commands in them, or hold conversations. All clients run at a
lower priority than the servers and the probe, as if they had a machine of their own.

The last line is JSON; the exit status is 1 when a p95 of /healthz is above 50 ms, when memory or descriptors
have grown, when a server has ended, or when an honest client has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from benchmarks.gateway import Server as GatewayServer
from benchmarks.parts.attacks import MIB, Target, fuzz, hold_silent, send, send_together
from benchmarks.parts.health_probe import Answer, answers, probing
from benchmarks.parts.odd_messages import GATEWAY, NODE, POOL, Endpoint, Message
from hone.sandbox import SandboxSpec, make_provider
from tests.chaos.servers import CLIENT_TOKEN, TOKEN
from tests.chaos.stack import Stack, stack

P95_MS = 50.0
GROWN_MIB, PEAK_MIB, GROWN_FDS = 64.0, 512.0, 16  # after the attacks; at any time; after the attacks
HONEST = 2  # clients at a time
SILENT = 2000  # connections
WARM_UP = 500  # messages before memory is measured
Attack = Callable[[], Awaitable[Counter[int]]]


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was seen of one server."""

    phases: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    levels: dict[str, float] = field(default_factory=dict[str, float])
    honest_calls: int = 0
    honest_failures: list[str] = field(default_factory=list[str])

    def missed(self) -> list[str]:
        """The bars that were missed, one sentence each."""
        found = [
            f"/healthz took {phase['p95_ms']:.0f} ms at p95 in {name}"
            for name, phase in self.phases.items()
            if phase["p95_ms"] > P95_MS or phase["unanswered"]
        ]
        now = self.levels
        bars = (
            ("rss_mib", now["rss_mib_after"] - now["rss_mib_before"], GROWN_MIB),
            ("peak_mib", now["peak_mib"] - now["rss_mib_before"], PEAK_MIB),
            ("fds", now["fds_after"] - now["fds_before"], GROWN_FDS),
        )
        found += [f"{name} grew by {by:.0f}" for name, by, most in bars if by > most]
        found += [] if now["alive"] else ["the server has ended"]
        return found + self.honest_failures[:3]


# --- bodies


def tree(field_name: str, size: int) -> bytes:
    """Return a JSON object of `size` bytes whose field holds as many empty lists as fit."""
    head = f'{{"{field_name}":['.encode()
    return head + b"[]," * ((size - len(head) - 3) // 3) + b"0]}"


def text(field_name: str, size: int, **fields: object) -> bytes:
    """Return a JSON object of about `size` bytes, most of it one text."""
    rest = json.dumps(fields)[1:-1]
    return f'{{"{field_name}":"{"A" * (size - 64)}"{"," if rest else ""}{rest}}}'.encode()


def bodies_of_node(own: str) -> dict[str, list[Message]]:
    """phase -> messages that are sent together."""
    execute, files, evaluate = (
        f"/v1/sandboxes/{own}/exec",
        f"/v1/sandboxes/{own}/files?path=a",
        "/container/evaluate",
    )
    forty = text("stdin", 40 * MIB, command=["true"])
    patch = text("patch", 40 * MIB, container_id=own, eval_script="true")
    together = [Message("POST", execute, forty)] * 4 + [Message("POST", evaluate, patch)] * 3
    together += [Message("PUT", files, forty)] * 3
    large = [Message("POST", execute, text("stdin", size * MIB, command=["true"])) for size in (1, 8, 24)]
    large.append(Message("POST", evaluate, text("patch", 15 * MIB, container_id=own, eval_script="true")))
    trees = [Message("POST", execute, tree("command", size * MIB)) for size in (1, 15, 95)]
    trees += [
        Message("POST", "/v1/sandboxes", tree("spec", MIB)),
        Message("POST", evaluate, tree("patch", 15 * MIB)),
    ]
    trees.append(
        Message("POST", evaluate, text("patch", 100, container_id=own, eval_script="\n" * (4 * MIB)))
    )
    return {"ten of 40 MiB": together, "large": large, "trees": trees}


def bodies_of_pool() -> dict[str, list[Message]]:
    forty = text("patch", 40 * MIB, lease_id="swe-lease-0")
    paths = (
        "/v1/leases",
        "/v1/heartbeats",
        "/allocate",
        "/close",
        "/exec",
        "/evaluate",
        "/diff",
        "/heartbeat",
    )
    together = [Message("POST", path, forty) for path in (*paths, "/evaluate", "/evaluate")]
    large = [Message("POST", "/evaluate", text("patch", size * MIB, lease_id="a")) for size in (1, 8, 15)]
    beats = [{"lease_id": f"l{n}", "generation": n} for n in range(10_000)]
    large.append(Message("POST", "/v1/heartbeats", json.dumps({"leases": beats}).encode()))
    trees = [Message("POST", path, tree("leases", 7 * MIB)) for path in paths]
    return {"ten of 40 MiB": together, "large": large, "trees": trees}


def bodies_of_gateway() -> dict[str, list[Message]]:
    counted, completed = "/messages/count_tokens", "/chat/completions"

    def chat(path: str, size: int, number: int) -> Message:
        words = (f"word{number} " * (size // 6))[:size]
        return Message("POST", path, json.dumps({"messages": [{"role": "user", "content": words}]}).encode())

    fresh = [chat(path, MIB, number) for number, path in enumerate((counted, completed) * 2)]
    larger = [chat(path, 24 * MIB, number) for number, path in enumerate((counted, completed) * 2)]
    trees = [Message("POST", path, tree("messages", 7 * MIB)) for path in (counted, completed)]
    many = [{"role": "user", "content": "x"}] * 9_999
    trees.append(Message("POST", counted, json.dumps({"messages": many}).encode()))
    together = [chat(path, 40 * MIB, 0) for path in (counted, completed) * 5]
    return {"ten of 40 MiB": together, "1 MiB": fresh, "24 MiB": larger, "trees": trees}


# --- phases


@dataclass(slots=True, kw_only=True)
class Siege:
    """The attacks on one server, and what is measured of it."""

    target: Target
    pids: Sequence[int]  # of the server, and of the processes that belong to it
    endpoints: Sequence[Endpoint]
    bodies: dict[str, list[Message]]
    options: argparse.Namespace
    figures: Figures = field(default_factory=Figures)
    _times: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def attacks(self) -> dict[str, Attack]:
        """phase -> its attack."""
        target, seconds = self.target, self.options.seconds
        found: dict[str, Attack] = {
            "honest clients only": lambda: _rest(seconds),
            f"{self.options.messages} odd messages": lambda: fuzz(
                target, self.endpoints, self.options.messages, self.options.seed
            ),
            f"{SILENT} silent connections": lambda: hold_silent(target, SILENT, seconds),
        }
        for name, messages in self.bodies.items():
            found[f"{name}, no token"] = lambda m=messages: send_together(target, m, "wrong", seconds)
            found[f"{name}, token"] = lambda m=messages: send_together(target, m, target.token, seconds)
        return found

    async def run(self, folder: Path) -> None:
        file = folder / f"{self.target.name}.probe"
        await fuzz(self.target, self.endpoints, WARM_UP, self.options.seed + 1)
        levels = self.figures.levels
        levels |= self._levels("before")
        _reset_peak(self.pids[0])
        with probing(self.target.port, file), low_priority():
            for name, attack in self.attacks().items():
                began = time.monotonic()
                statuses = await attack()
                self._times[name] = began, time.monotonic()
                print(f"{self.target.name}: {name}: {dict(statuses)}", flush=True)
            await _rest(3.0)  # for what was refused to be closed
        levels |= self._levels("after")
        levels["peak_mib"] = _status_mib(self.pids[0], "VmHWM")
        levels["alive"] = float(all(psutil.pid_exists(pid) for pid in self.pids))
        self._read(answers(file))

    def _levels(self, when: str) -> dict[str, float]:
        processes = [psutil.Process(pid) for pid in self.pids]
        return {
            f"rss_mib_{when}": round(sum(process.memory_info().rss for process in processes) / MIB, 1),
            f"fds_{when}": sum(process.num_fds() for process in processes),
        }

    def _read(self, seen: Sequence[Answer]) -> None:
        """Turn the probe's answers into the figures of the phases, and print them."""
        for name, (began, ended) in self._times.items():
            of_phase = [answer for answer in seen if began <= answer.asked <= ended]
            waits = sorted(answer.waited_ms for answer in of_phase)
            lates = sorted(answer.late_ms for answer in of_phase)
            self.figures.phases[name] = {
                "p50_ms": round(waits[len(waits) // 2], 1),
                "p95_ms": round(waits[int(0.95 * (len(waits) - 1))], 1),
                "max_ms": round(waits[-1], 1),
                "probe_late_p95_ms": round(lates[int(0.95 * (len(lates) - 1))], 1),
                "unanswered": sum(not answer.well for answer in of_phase),
            }
            row = "  ".join(f"{key} {value:g}" for key, value in self.figures.phases[name].items())
            print(f"{self.target.name:8} {name:28} {row}")
        print(
            f"{self.target.name:8}",
            "  ".join(f"{k} {v:g}" for k, v in self.figures.levels.items()),
            flush=True,
        )


@contextlib.contextmanager
def low_priority() -> Iterator[None]:
    """Let this process wait for the servers and the probe, as if its clients had a machine of their own."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 15)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)  # needs root, as the sandboxes' limits do


async def _rest(seconds: float) -> Counter[int]:
    await asyncio.sleep(seconds)
    return Counter()


def _reset_peak(pid: int) -> None:
    """Let VmHWM of a process begin at its memory of now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024, 1)


@contextlib.asynccontextmanager
async def honest(figures: Figures, call: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Make honest calls while the block runs, HONEST at a time; count them, and what they raise."""
    stopping = False

    async def client() -> None:
        while not stopping:
            try:
                await call()
                figures.honest_calls += 1
            except Exception as error:
                figures.honest_failures.append(f"an honest client failed: {error!r}"[:300])

    running = [asyncio.create_task(client()) for _ in range(HONEST)]
    yield
    stopping = True
    await asyncio.gather(*running)


# --- servers


async def attack_sandbox_servers(
    options: argparse.Namespace, folder: Path, made: Stack
) -> dict[str, Figures]:
    node = made.node
    pool = Target(name="pool", port=int(made.pool.url.rpartition(":")[2]), token=CLIENT_TOKEN)
    target = Target(name="node", port=int(node.url.rpartition(":")[2]), token=TOKEN)
    status, body = await send(
        target, Message("POST", "/v1/sandboxes", b'{"spec": {}, "ttl_s": 86400}'), TOKEN
    )
    assert status == 200, body
    own = json.loads(body)["id"]
    target = Target(name="node", port=target.port, token=TOKEN, own=own)
    pids = (node.pid, node.spawner())
    sieges = (
        Siege(target=target, pids=pids, endpoints=NODE, bodies=bodies_of_node(own), options=options),
        Siege(target=pool, pids=(made.pool.pid,), endpoints=POOL, bodies=bodies_of_pool(), options=options),
    )
    async with make_provider(made.settings) as provider:

        async def call() -> None:
            async with await provider.start(SandboxSpec(run="honest")) as sandbox:
                assert (await sandbox.exec("cat; echo end", stdin=b"data ")).text == "data end\n"

        for siege in sieges:
            async with honest(siege.figures, call):
                await siege.run(folder)
    await send(target, Message("DELETE", f"/v1/sandboxes/{own}", b""), TOKEN)
    return {siege.target.name: siege.figures for siege in sieges}


async def attack_gateway(options: argparse.Namespace, folder: Path) -> dict[str, Figures]:
    server = GatewayServer()
    try:
        key = server.ask("open", 0.0).split("/")[2]
        target = Target(name="gateway", port=server.port, token=key, prefix="/v1")
        siege = Siege(
            target=target, pids=(server.pid,), endpoints=GATEWAY, bodies=bodies_of_gateway(), options=options
        )

        async def call() -> None:
            path = server.ask("open", 0.0)
            await (await server.talk_at(path, "honest")).turns(3)
            server.ask("close", path)

        async with honest(siege.figures, call):
            await siege.run(folder)
        return {"gateway": siege.figures}
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000, help="odd messages for each server")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each other phase")
    parser.add_argument("--seed", type=int, default=0, help="of the odd messages")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        with stack(max_sandboxes=24, ttl_s=60.0, queue_s=60.0) as made:
            found |= asyncio.run(attack_sandbox_servers(options, Path(folder), made))
        found |= asyncio.run(attack_gateway(options, Path(folder)))
    missed = [f"{name}: {sentence}" for name, figures in found.items() for sentence in figures.missed()]
    metrics = {
        name: {
            "phases": figures.phases,
            **figures.levels,
            "honest_calls": figures.honest_calls,
            "honest_failures": len(figures.honest_failures),
        }
        for name, figures in found.items()
    }
    result = {"name": "servers_under_attack", "metrics": metrics, "peers": {}, "ratios": {}}
    print(json.dumps({**result, "load_before": round(load, 1), "missed": missed}))
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
