"""Run a command again and again while busy loops take every core: a test of chance fails sooner or later.

    python scripts/repeat_under_load.py --runs 20 -- make fast
    python scripts/repeat_under_load.py --runs 5 -- make test

The interpreter that runs the tests switches threads every 10 microseconds (HONE_SWITCH_INTERVAL, which
tests/conftest.py reads). Each run's output is kept in --logs. The last line is JSON; exit code 1 if a run
failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def spin(parent: int) -> None:
    """Take one core until the process `parent` ends."""
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


@contextmanager
def busy_cores(count: int) -> Generator[None]:
    """Take `count` cores while the block runs."""
    loops = [
        multiprocessing.get_context("spawn").Process(target=spin, args=(os.getpid(),), daemon=True)
        for _ in range(count)
    ]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--loops", type=int, default=os.cpu_count(), help="busy loops; default: one per core")
    parser.add_argument("--logs", type=Path, default=Path("runs/under-load"), help="a folder for the outputs")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command, after --")
    args = parser.parse_args()
    command: list[str] = [word for word in args.command if word != "--"]
    if not command:
        parser.error("name a command after --, such as: -- make fast")
    args.logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HONE_SWITCH_INTERVAL": "1e-5"}
    seconds: list[float] = []
    failed: list[int] = []
    with busy_cores(args.loops):
        for number in range(1, args.runs + 1):
            log = args.logs / f"run-{number}.txt"
            began = time.monotonic()
            with log.open("wb") as output:
                code = subprocess.run(command, env=environment, stdout=output, stderr=output).returncode
            seconds.append(round(time.monotonic() - began, 1))
            if code:
                failed.append(number)
            print(f"run {number}: exit code {code}, {seconds[-1]} s, {log}", flush=True)
    print(json.dumps({"command": command, "runs": args.runs, "failed": failed, "seconds": seconds}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
