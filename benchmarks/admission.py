"""What validation over a pool of two nodes costs beside one process, and what kill -9 loses and repeats.

    python benchmarks/admission.py [--tasks FILE] [--count 1000] [--repeat 2] [--at-once 4] [--block 40]

Pool, nodes and command are processes of this machine, so they share its cores: the figures show what the pool
adds, not what more machines give. First, blocks of tasks run in turn in one process and over the pool, with
the same total concurrency; a busy machine changes the tasks per second of a block, and much less its
processor time, which counts the processes of both sides. Then all tasks run over the pool in a command that
is killed once, with kill -9, after a third of them, and is run again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from hone.curate.card import check_card
from hone.tasks.curriculum import generate
from hone.tasks.formats import save
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import load_all
from hone.types import Task
from tests.chaos.stack import stack

_COMMAND = (sys.executable, "-c", "from hone.cli import main; raise SystemExit(main())", "tasks", "validate")
_POLL_S = 0.5
_TTL_S = 60.0
_QUEUE_S = 600.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def command(tasks: Path, out: Path, arguments: argparse.Namespace, provider: Sequence[str]) -> list[str]:
    shared = ["--repeat", str(arguments.repeat), "--set", f"grading.concurrency={arguments.at_once}"]
    return [*_COMMAND, str(tasks), "-o", str(out), *shared, *provider]


def lines_of(journal: Path) -> list[str]:
    """Return the complete lines of a journal, without the description of the run."""
    if not journal.exists():
        return []
    return journal.read_text(errors="replace").split("\n")[1:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    tasks_per_s: float  # the start of the command included
    cpu_s: float  # processor time of a task, of all processes


def cpu_s(servers: Sequence[int]) -> float:
    """Return the processor time of this process's ended children, of the servers and of what they started."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = ended.ru_utime + ended.ru_stime
    for server in map(psutil.Process, servers):
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, and counts as its parent's
                found += sum(process.cpu_times()[:4])
    return found


def run_block(
    tasks: Sequence[Task], arguments: argparse.Namespace, provider: Sequence[str], servers: Sequence[int]
) -> Block:
    with tempfile.TemporaryDirectory(prefix="hone-block-") as folder:
        file = Path(folder, "tasks.jsonl")
        save(tasks, file)
        started, cpu = time.monotonic(), cpu_s(servers)
        done = subprocess.run(
            command(file, Path(folder, "out.jsonl"), arguments, provider), capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr[-2000:])
        seconds = time.monotonic() - started
        return Block(tasks_per_s=len(tasks) / seconds, cpu_s=(cpu_s(servers) - cpu) / len(tasks))


def run_killed(
    tasks: Sequence[Task], arguments: argparse.Namespace, provider: Sequence[str]
) -> dict[str, Any]:
    """Validate all tasks in two lives of one command; return what was done in each."""
    with tempfile.TemporaryDirectory(prefix="hone-killed-") as folder:
        file, out, kept = Path(folder, "tasks.jsonl"), Path(folder, "out.jsonl"), Path(folder, "kept")
        journal = Path(folder, "out.jsonl.partial")
        save(tasks, file)
        full = command(file, out, arguments, provider)
        started = time.monotonic()
        with Path(folder, "log").open("wb") as log:
            first = subprocess.Popen(full, stdout=log, stderr=log)
            while len(lines_of(journal)) < len(tasks) // 3:
                if first.poll() is not None:
                    raise RuntimeError(f"it ended early: {Path(folder, 'log').read_text()[-2000:]}")
                time.sleep(_POLL_S)
            first.kill()
            first.wait()
            before = len(lines_of(journal))
            killed_s = time.monotonic() - started
            os.link(journal, kept)  # the command removes its journal at the end
            say(f"killed after {before} of {len(tasks)} tasks and {killed_s:.0f} s")
            started = time.monotonic()
            second = subprocess.run(full, stdout=log, stderr=subprocess.PIPE, text=True)
        resumed_s = time.monotonic() - started
        if second.returncode not in (0, 1):
            raise RuntimeError(second.stderr[-2000:])
        times = Counter(json.loads(line)[0] for line in lines_of(kept))
        card = json.loads(Path(folder, "out.card.json").read_bytes())
        return {
            "decided_before_kill": before,
            "decided_after": len(tasks) - before,
            "twice": sum(count > 1 for count in times.values()),
            "lost": len({task.id for task in tasks} - set(times)),
            "first_tasks_per_s": round(before / killed_s, 3),
            "second_tasks_per_s": round((len(tasks) - before) / resumed_s, 3),
            "card_problems": len(check_card(card, load_all(out))),
            "counts": card["counts"],
            "journal_left": journal.exists(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", type=Path, help="a file of tasks, to which those of the curriculum are added"
    )
    parser.add_argument("--count", type=int, default=1000, help="tasks of the run that is killed")
    parser.add_argument("--repeat", type=int, default=2, help="gradings of each patch")
    parser.add_argument("--at-once", type=int, default=4, help="tasks at once, over both nodes together")
    parser.add_argument("--block", type=int, default=40, help="tasks of a block of the comparison")
    parser.add_argument("--pairs", type=int, default=3, help="blocks of each kind; 0: no comparison")
    arguments = parser.parse_args()
    given = load_all(arguments.tasks) if arguments.tasks else []
    made = generate(TasksSettings(train=arguments.count - len(given), test=0, unseen=0)).train
    tasks = [*given, *made]
    blocks: dict[str, list[Block]] = {"one process": [], "pool": []}
    with stack(
        nodes=2, max_sandboxes=max(1, arguments.at_once // 2), ttl_s=_TTL_S, queue_s=_QUEUE_S
    ) as made_stack:
        pool = ["--pool", made_stack.pool.url, "--set"]
        pool += [f"sandbox.pool_token_file={made_stack.settings.pool_token_file}"]
        for number in range(arguments.pairs):
            block = made[number * arguments.block : (number + 1) * arguments.block]
            for kind, provider in (("one process", []), ("pool", pool))[:: 1 if number % 2 else -1]:
                servers = [server.pid for server in (*made_stack.nodes, made_stack.pool)]
                found = run_block(block, arguments, provider, servers)
                blocks[kind].append(found)
                say(f"{kind}: {found.tasks_per_s:.2f} tasks/s, {found.cpu_s:.2f} s of processor time a task")
        killed = run_killed(tasks, arguments, pool) if arguments.count else {}
        leases = made_stack.pool.status().totals
        result = {
            "benchmark": "admission",
            "tasks": len(tasks),
            "of_file": len(given),
            "repeat": arguments.repeat,
            "at_once": arguments.at_once,
            "cores": len(os.sched_getaffinity(0)),
            "tasks_per_s": {kind: [round(b.tasks_per_s, 3) for b in each] for kind, each in blocks.items()},
            "cpu_s_per_task": {kind: [round(b.cpu_s, 2) for b in each] for kind, each in blocks.items()},
            "killed": killed,
            "leases": leases,
        }
        print(json.dumps(result))  # before the servers stop, which may fail
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
