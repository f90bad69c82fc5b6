"""How quickly the debugger answers, against pdb on a pseudo-terminal that is polled for its prompt.

    python benchmarks/debugger.py [--commands 300] [--peer-commands 20] [--provider namespaces]

Both debug the same program in the same sandbox, in the same run, with the same commands; each command comes
back with its output, the frame, the lines around it and the breakpoints. Hone's are timed from outside the
sandbox, as an agent waits for them; the peer's inside, without any transport. Then the start of a session is
timed, of a script and of a test. The last line is JSON; times are in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hone.agents.debugger.client import MOUNTS, open_client, open_listener
from hone.agents.debugger.pdb import Pdb
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

WORKDIR = "/testbed"
PEER = Path(__file__).parent / "peers" / "polled_pdb.py"
PROGRAM = """def step(values):
    total = 0
    for value in values:
        total += value
    return total


while True:
    step(range(3))
"""
TEST = "from program import step\n\n\ndef test_step():\n    assert step([1]) == 1\n"
COMMANDS = ["c", "p total", "n", "pp values", "w", "n", "u", "d", "a", "s"]
MOST_MS, LEAST_RATIO = 30.0, 5.0


async def ours(pdb: Pdb, count: int) -> list[float]:
    """Seconds of each command."""
    await pdb.use("start", "python", "program.py")
    await pdb.use("b step", None, None)
    seconds = []
    for number in range(count):
        started = time.perf_counter()
        text, done = await pdb.use(COMMANDS[number % len(COMMANDS)], None, None)
        seconds.append(time.perf_counter() - started)
        if not done:
            raise RuntimeError(text)
    return seconds


async def starts(pdb: Pdb, runner: str, file: str, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        text, done = await pdb.use("start", runner, file)
        seconds.append(time.perf_counter() - started)
        if not done:
            raise RuntimeError(text)
    return seconds


async def peers(sandbox: Sandbox, count: int) -> list[float]:
    result = await sandbox.exec(
        ["python3", "polled_pdb.py", "program.py", str(count)],
        stdin=json.dumps(["b step", *COMMANDS]).encode(),
        timeout_s=600,
    )
    if result.exit_code != 0:
        raise RuntimeError(result.stderr.decode())
    return json.loads(result.stdout)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = SandboxSettings(provider=options.provider)
    async with make_provider(settings) as provider, open_listener() as listener:
        spec = SandboxSpec(workdir=WORKDIR, tunnel=listener.path, mounts=MOUNTS)
        async with await provider.start(spec) as sandbox:
            for path, text in (("program.py", PROGRAM), ("test_program.py", TEST)):
                await sandbox.write(path, text.encode())
            await sandbox.write("polled_pdb.py", PEER.read_bytes())
            async with open_client(sandbox, listener) as client:
                pdb = Pdb(client, WORKDIR, 30.0)
                quick = await ours(pdb, options.commands)
                script = await starts(pdb, "python", "program.py", 10)
                test = await starts(pdb, "pytest", "test_program.py", 5)
            slow = await peers(sandbox, options.peer_commands)
    median = statistics.median
    return {
        "pdb_ms_p50": 1e3 * median(quick),
        "pdb_ms_p99": 1e3 * statistics.quantiles(quick, n=100)[-1],
        "start_script_ms_p50": 1e3 * median(script),
        "start_pytest_ms_p50": 1e3 * median(test),
        "peer_ms_p50": 1e3 * median(slow),
        "ratios": {"polled_pdb": median(slow) / median(quick)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", type=int, default=300)
    parser.add_argument("--peer-commands", type=int, default=20)
    parser.add_argument("--provider", choices=["namespaces", "docker"], default="namespaces")
    found = asyncio.run(measure(parser.parse_args()))
    for name, value in found.items():
        print(f"{name:22} {value if isinstance(value, dict) else round(value, 2)}")
    print(json.dumps({name: v if isinstance(v, dict) else round(v, 3) for name, v in found.items()}))
    return int(found["pdb_ms_p50"] > MOST_MS or found["ratios"]["polled_pdb"] < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
