"""Judge the fast tests by mutants of Hone: each must make a test fail, or be a known equivalent.

    python scripts/mutants.py [--count 320] [--seed 13] [--workers 1] [--work DIR]
    python scripts/mutants.py --only KEY... [--tests FILE...]     judge some again, by tests of your choice

The operators of hone/curate/mutation change train, rollout, grading, environment and tasks; the mutants of
tests/mutants_named.toml are judged too. One run of the fast tier measures which test reaches which line; then
each mutant is judged, in a copy of the tree, by the fast tests that reach its line, and where they miss it by
the tests that tests/mutants_slow.toml lists for its file. It is killed when a test fails or a fast one runs
too long. A survivor, or a mutant that no test reaches, must be in tests/mutants_equivalent.toml with a
reason; otherwise the exit status is 1. A run that was stopped continues where it was, unless a file of hone/
or tests/ has changed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutant_candidates import ROOT, Mutant, draw, known_equivalents, slow_tests

WORKER = Path(__file__).with_name("mutant_worker.py")
ALIVE = ("survived", "uncovered", "slow timeout")
COVERAGE_TIMEOUT_S = 3600.0
MIN_TIMEOUT_S, SLOWER = 120.0, 4.0  # a mutant's tests may take this many times their seconds
SLOW_TIMEOUT_S = 900.0  # of the tests of SLOW, whose seconds are not measured


class Worker:
    """A copy of the tree, and a process that runs tests there."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        shutil.rmtree(tree, ignore_errors=True)
        for name in _listed():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what one run has compiled serves the next
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            cwd=tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.mutations = 0

    def run(self, **job: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**job, "log": str(self.log)}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker in {self.tree} ended with status {self.process.wait()}")
        return json.loads(line)

    @property
    def log(self) -> Path:
        return self.tree.with_suffix(".log")

    def judge(self, mutant: Mutant, tests: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Run tests on a mutant: "killed", "timeout" or "survived", and the seconds."""
        file = self.tree / mutant.file
        original, modified = file.read_bytes(), file.stat().st_mtime
        file.write_text(mutant.text)
        self.mutations += 1
        other = modified + 10 * self.mutations  # Python compares compiled files by whole seconds
        os.utime(file, (other, other))
        try:
            result = self.run(kind="tests", tests=list(tests), timeout_s=timeout_s)
        finally:
            file.write_bytes(original)
            os.utime(file, (modified, modified))
        verdict = {None: "timeout", 0: "survived"}.get(result["code"], "killed")
        return {"verdict": verdict, "seconds": result["seconds"]}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Reach:
    """The fast tests that reach each line."""

    seconds: Mapping[str, float]  # id of each test that passes
    lines: Mapping[str, Mapping[str, Sequence[str]]]  # file -> line -> tests; "" is the time of the import

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests to judge a mutant by, those of its room first, then the quickest."""
        lines = self.lines.get(mutant.file, {})
        contexts = {context for line in mutant.lines for context in lines.get(str(line), ())}
        if contexts == {""}:  # evaluated at import only: every test that runs code of the file
            contexts |= {context for found in lines.values() for context in found}
            if contexts == {""}:
                contexts.add(f"tests/{mutant.file.split('/')[1]}/")
        tests = [test for test in self.seconds if _contexts_of(test) & contexts or _in_folder(test, contexts)]
        room = f"tests/{mutant.file.split('/')[1]}/"
        return sorted(tests, key=lambda test: (not test.startswith(room), self.seconds[test], test))

    def timeout_s(self, tests: Sequence[str]) -> float:
        return MIN_TIMEOUT_S + SLOWER * sum(self.seconds.get(test, 0) for test in tests)


def _contexts_of(test: str) -> set[str]:
    return {test, test.partition("::")[0]}


def _in_folder(test: str, contexts: set[str]) -> bool:
    return any(context.endswith("/") and test.startswith(context) for context in contexts)


def measure_reach(worker: Worker, path: Path) -> Reach:
    """Return which fast tests reach which lines, from `path` or by running them all once."""
    if not path.exists():
        print("running the fast tier once to see which test reaches which line", flush=True)
        partial = path.with_suffix(".partial")
        result = worker.run(
            kind="coverage", output=str(partial), tests=["tests"], timeout_s=COVERAGE_TIMEOUT_S
        )
        if result["code"] != 0:
            raise SystemExit(f"the fast tests do not run on the unchanged tree: see {worker.log}")
        partial.replace(path)
        print(f"  {result['seconds']:.0f} s", flush=True)
    found = json.loads(path.read_text())
    for test in found["failed"]:
        print(f"  not used, it fails on the unchanged tree: {test}", flush=True)
    seconds = {test: s for test, s in found["seconds"].items() if test not in set(found["failed"])}
    return Reach(seconds, found["lines"])


def _listed() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    return sorted(kept)  # `recipes`, a link to a folder, is one of them


def digest() -> str:
    """Return a hash of every file that can change a verdict."""
    found = hashlib.sha256()
    for name in _listed():
        if name.startswith(("hone/", "tests/", "pyproject.toml")) and not name.endswith(".toml"):
            found.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return found.hexdigest()[:16]


class Run:
    """The mutants of one call, and what is known of them."""

    def __init__(self, mutants: Sequence[Mutant], reach: Reach, journal: Path, tests: Sequence[str]) -> None:
        self.mutants, self.reach, self.journal, self.given = mutants, reach, journal, tests
        self.known: dict[str, dict[str, Any]] = {}
        if journal.exists():
            rows = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
            self.known = {row["key"]: row for row in rows}
        self.slow = slow_tests()
        self.lock = threading.Lock()
        self.done = 0

    def judge_all(self, workers: Sequence[Worker]) -> dict[str, str]:
        """Return the verdict of each mutant by key."""
        free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            free.put(worker)

        def judge(mutant: Mutant) -> None:
            worker = free.get()
            try:
                self._judge(mutant, worker)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(workers)) as pool:
            list(pool.map(judge, self.mutants))
        return {mutant.key: self.known[mutant.key]["verdict"] for mutant in self.mutants}

    def _judge(self, mutant: Mutant, worker: Worker) -> None:
        row = self.known.get(mutant.key)
        if row is None or self.given:
            row = {"key": mutant.key, **self._judged(mutant, worker)}
        with self.lock:
            if not self.given and mutant.key not in self.known:
                with self.journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            self.known[mutant.key] = row
            self.done += 1
            progress = f"{self.done}/{len(self.mutants)} {row['verdict']:9} {row['seconds']:5.1f} s"
            print(f"{progress} {row['tests']:4} tests  {mutant.describe()}", flush=True)

    def _judged(self, mutant: Mutant, worker: Worker) -> dict[str, Any]:
        tests = self.given or self.reach.tests(mutant)
        row = {"verdict": "uncovered", "seconds": 0.0}
        if tests:
            row = worker.judge(mutant, tests, self.reach.timeout_s(tests))
        if row["verdict"] in ALIVE and not self.given and mutant.file in self.slow:
            slow = worker.judge(mutant, self.slow[mutant.file], SLOW_TIMEOUT_S)
            slow["verdict"] = {
                "killed": "killed by a slow test",
                "timeout": "slow timeout",  # proves nothing: their seconds without the mutant are not known
            }.get(slow["verdict"], slow["verdict"])
            row = {**slow, "seconds": round(row["seconds"] + slow["seconds"], 2)}
        return {**row, "tests": len(tests)}


def report(mutants: Sequence[Mutant], verdicts: Mapping[str, str], *, whole: bool) -> int:
    """Print the survivors and the line of JSON; return the exit status."""
    reasons = known_equivalents()
    alive = [mutant for mutant in mutants if verdicts[mutant.key] in ALIVE]
    unexplained = [mutant for mutant in alive if mutant.signature not in reasons]
    by_file: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in unexplained:
        by_file[mutant.file].append(mutant)
    for file in sorted(by_file):
        print(f"\n== {file}")
        for mutant in sorted(by_file[file], key=lambda mutant: mutant.lines):
            print(f"{verdicts[mutant.key]:9} {mutant.describe()}")
    rooms = {name: Counter[str]() for name in sorted({mutant.file.split("/")[1] for mutant in mutants})}
    for mutant in mutants:
        rooms[mutant.file.split("/")[1]][verdicts[mutant.key]] += 1
    stale = len(reasons.keys() - {mutant.signature for mutant in mutants}) if whole else 0
    if stale:
        print(f"\n{stale} entries of tests/mutants_equivalent.toml match no mutant of this draw")
    if unexplained:
        print(
            f"\n{len(unexplained)} mutants survive. Kill each with a fast test, or record in "
            "tests/mutants_equivalent.toml why it changes nothing."
        )
    summary = {
        "name": "mutants",
        "mutants": len(mutants),
        **Counter(verdicts.values()),
        "explained": len(alive) - len(unexplained),
        "unexplained": len(unexplained),
        "rooms": rooms,
    }
    print(json.dumps(summary))
    return 1 if unexplained else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=320, help="mutants to draw besides the named ones")
    parser.add_argument("--seed", type=int, default=13, help="of the draw")
    parser.add_argument("--workers", type=int, default=1, help="copies of the tree that judge side by side")
    parser.add_argument("--work", type=Path, help="folder of copies and results (default: under /tmp)")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="judge these mutants only")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="judge by these tests only")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge none")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    mutants = draw(options.count, options.seed)
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.key in options.only]
    if options.list:
        print("\n".join(mutant.describe() for mutant in mutants))
        return 0
    start = time.monotonic()
    folder = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    work = (options.work or Path(tempfile.gettempdir()) / f"hone-mutants-{folder}").absolute()
    work.mkdir(parents=True, exist_ok=True)
    state = digest()
    workers = [Worker(work / f"tree-{number}") for number in range(options.workers)]
    try:
        reach = Reach({}, {}) if options.tests else measure_reach(workers[0], work / f"reach-{state}.json")
        run = Run(mutants, reach, work / f"results-{state}.jsonl", options.tests)
        verdicts = run.judge_all(workers)
    finally:
        for worker in workers:
            worker.close()
    print(f"\n{time.monotonic() - start:.0f} s")
    return report(mutants, verdicts, whole=not options.only)


if __name__ == "__main__":
    sys.exit(main())
