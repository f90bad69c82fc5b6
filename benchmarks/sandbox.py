"""How quickly sandboxes start, run commands and end; beside the Docker CLI where a daemon runs.

    python benchmarks/sandbox.py [--image IMAGE] [--samples 40] [--episodes 60]

An episode is: start over a small git repository, five commands, `git diff`, close. Medians are of one
sandbox at a time; episodes per second are the best of 1 to 4 at a time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

COMMANDS = (
    "ls",
    "cat module.py",
    "sed -i 's/1/2/' module.py",
    "grep -n return module.py",
    "git status --short",
)
CONCURRENCY = (1, 2, 3, 4)


def make_repository(folder: Path) -> None:
    """A git repository with one commit."""
    git = ["git", "-C", str(folder), "-c", "user.name=hone", "-c", "user.email=hone@localhost"]
    (folder / "module.py").write_text("def f():\n    return 1\n" * 50)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
        subprocess.run([*git, *command], check=True)


async def timed_ms(action: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await action()
    return (time.perf_counter() - started) * 1e3


async def per_second(episode: Callable[[], Awaitable[None]], count: int, concurrency: int) -> float:
    """Episodes per second with `concurrency` of them at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await episode()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return count / (time.perf_counter() - started)


async def measure_hone(repository: Path, samples: int, episodes: int) -> dict[str, float]:
    async with make_provider(SandboxSettings()) as provider:
        spec = SandboxSpec(layer=repository)

        async def episode() -> None:
            async with await provider.start(spec) as sandbox:
                for command in COMMANDS:
                    await sandbox.exec(command)
                assert (await sandbox.exec("git diff")).stdout

        starts: list[float] = []
        execs: list[float] = []
        closes: list[float] = []
        for _ in range(samples):
            began = time.perf_counter()
            sandbox = await provider.start(spec)
            starts.append((time.perf_counter() - began) * 1e3)
            await sandbox.exec("true")
            execs += [await timed_ms(lambda box=sandbox: box.exec("true")) for _ in range(5)]
            closes.append(await timed_ms(sandbox.close))
        rates = {n: await per_second(episode, episodes, n) for n in CONCURRENCY}
    return summary(starts, execs, closes, rates)


async def measure_docker(image: str, repository: Path, samples: int, episodes: int) -> dict[str, float]:
    async def docker(*arguments: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            "docker", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        return output.strip()

    async def build() -> str:
        """The image with the repository in it, as the layer holds it on the other side."""
        name = (await docker("create", image, "true")).decode()
        assert name, f"docker does not have the image {image}"
        await docker("cp", f"{repository}/.", f"{name}:/testbed")
        built = await docker("commit", name)
        await docker("rm", name)
        return built.decode()

    async def start() -> str:
        options = ("--network", "none", "--memory", "512m", "--pids-limit", "128", "-w", "/testbed")
        name = await docker("run", "-d", *options, built, "sleep", "1000")
        assert name, f"docker cannot run {image}"
        return name.decode()

    async def execute(name: str, command: str) -> bytes:
        return await docker("exec", name, "bash", "-c", command)

    async def close(name: str) -> None:
        await docker("rm", "-f", name)

    async def episode() -> None:
        name = await start()
        for command in COMMANDS:
            await execute(name, command)
        assert await execute(name, "git -c safe.directory=/testbed diff")
        await close(name)

    built = await build()
    starts: list[float] = []
    execs: list[float] = []
    closes: list[float] = []
    for _ in range(samples):
        began = time.perf_counter()
        name = await start()
        starts.append((time.perf_counter() - began) * 1e3)
        execs += [await timed_ms(lambda box=name: execute(box, "true")) for _ in range(3)]
        closes.append(await timed_ms(lambda box=name: close(box)))
    rates = {n: await per_second(episode, episodes, n) for n in CONCURRENCY}
    await docker("rmi", built)
    return summary(starts, execs, closes, rates)


def summary(
    starts: list[float], execs: list[float], closes: list[float], rates: dict[int, float]
) -> dict[str, float]:
    rounded = {f"episodes_per_s_{n}": round(rate, 2) for n, rate in rates.items()}
    return {
        "start_ms_p50": round(statistics.median(starts), 2),
        "exec_ms_p50": round(statistics.median(execs), 2),
        "close_ms_p50": round(statistics.median(closes), 2),
        "episodes_per_s": max(rounded.values()),
        **rounded,
    }


def daemon_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version", "--format", "x"], capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", default="python:3.11", help="image with bash and git, for Docker")
    parser.add_argument("--samples", type=int, default=40, help="sandboxes for the medians")
    parser.add_argument("--episodes", type=int, default=60, help="episodes for each rate")
    options = parser.parse_args()
    peers: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_repository(Path(folder))
        metrics = asyncio.run(measure_hone(Path(folder), options.samples, options.episodes))
        if daemon_runs():
            fewer = max(3, options.samples // 5), max(4, options.episodes // 10)
            peers["docker_cli"] = asyncio.run(measure_docker(options.image, Path(folder), *fewer))
        else:
            print("no Docker daemon answers, so nothing stands beside these figures")
    for name, figures in {"hone": metrics, **peers}.items():
        print(f"{name:12}", "  ".join(f"{key} {value:g}" for key, value in figures.items()))
    ratios = {
        f"{key}_over_{peer}": round(metrics[key] / value if "per_s" in key else value / metrics[key], 2)
        for peer, figures in peers.items()
        for key, value in figures.items()
    }
    print(json.dumps({"name": "sandbox", "metrics": metrics, "peers": peers, "ratios": ratios}))


if __name__ == "__main__":
    main()
