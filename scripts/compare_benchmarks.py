"""Run benchmarks of an earlier revision and of this tree in turns, and print each figure's ratio.

    python scripts/compare_benchmarks.py REVISION BENCHMARK ... [--runs 3] [--arguments "..."]
    python scripts/compare_benchmarks.py v0.1 gateway pool --runs 5

BENCHMARK is the name of a script in benchmarks/, without `.py`. The revision is checked out beside this tree
and runs with the same interpreter and packages, so these must satisfy both. Runs alternate (old, new, old,
new ...), which shares the drift of a busy machine between the two. A figure's ratio is the median of the new
runs by the median of the old ones: whether more or less is better, its name says. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 1800.0  # of one run of a benchmark


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield a work tree of `revision` that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hone-revision-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(tree: Path, benchmark: str, arguments: list[str]) -> dict[str, float]:
    """Run one benchmark of a tree and return its figures, those of nested objects as `outer.inner`."""
    done = subprocess.run(
        [sys.executable, str(tree / "benchmarks" / f"{benchmark}.py"), *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return dict(figures(json.loads(done.stdout.splitlines()[-1])))


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value by their dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from figures(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def compare(old: list[dict[str, float]], new: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return each common figure's medians and their ratio, new by old."""
    compared: dict[str, dict[str, float]] = {}
    for name in old[0]:
        if all(name in run for run in [*old, *new]):
            before, after = (statistics.median(run[name] for run in runs) for runs in (old, new))
            ratio = after / before if before else float("nan")
            compared[name] = {"old": before, "new": after, "ratio": ratio}
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision", help="any revision of this repository")
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="names of scripts in benchmarks/")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side (3)")
    parser.add_argument("--arguments", default="", help="arguments of every benchmark, in one string")
    options = parser.parse_args()
    arguments = shlex.split(options.arguments)
    result: dict[str, Any] = {"revision": options.revision}
    with checkout(options.revision) as before:
        for benchmark in options.benchmarks:
            old: list[dict[str, float]] = []
            new: list[dict[str, float]] = []
            for run in range(options.runs):
                print(f"{benchmark}: run {run + 1} of {options.runs}", file=sys.stderr, flush=True)
                old.append(measure(before, benchmark, arguments))
                new.append(measure(ROOT, benchmark, arguments))
            result[benchmark] = compare(old, new)
            for name, row in result[benchmark].items():
                print(f"{benchmark}  {name:48} {row['old']:12.4g} {row['new']:12.4g}  x {row['ratio']:.3f}")
            missing = sorted(set(old[0]) ^ set(new[0]))
            if missing:
                print(f"{benchmark}  figures of one side only: {', '.join(missing)}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
