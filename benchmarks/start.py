"""`hone start` on repositories, one after the other: minutes, tasks by kind, and statements to read.

    python benchmarks/start.py FOLDER ... --out DIR [--limit 4] [--repeat 2] [--model NAME] [--statements 20]

Each FOLDER is a clone with its history; one command is typed for each. The same line continues a stopped run.
With --model, a run ends with the recipe where this machine cannot train the model. Prints the statements of
mined and seeded tasks in turn, for reading, and ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hone.tasks.sources import load_all
from hone.types import Task

_ROOT = Path(__file__).parents[1]
_HONE = "import sys; sys.argv[0] = 'hone'; from hone.cli import main; sys.exit(main())"


def start(repository: Path, out: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Type the command; return what it says, or why it stopped."""
    command = ["start", str(repository), "-o", str(out), "--json", *arguments]
    done = subprocess.run(
        [sys.executable, "-c", _HONE, *command],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        check=False,
    )
    (out.parent / f"{out.name}.log").write_text(done.stderr)
    journal = out / "start.jsonl"
    lines = journal.read_text().splitlines()[1:] if journal.is_file() else []
    noted = dict(map(json.loads, lines))
    found = json.loads(done.stdout) if done.returncode == 0 else {"stopped": done.stderr.splitlines()[-1]}
    return {
        "repository": repository.name,
        "commands": 1,
        "exit_code": done.returncode,
        "minutes": noted.get("minutes"),
        **{name: noted[name] for name in ("mined", "seeded") if name in noted},
        **{name: found.get(name) for name in ("sets", "level", "hardware", "baseline", "stopped")},
    }


def show_statements(tasks: Sequence[Task], count: int) -> None:
    """Print statements in a random order that alternates between the kinds."""
    kinds = [[task for task in tasks if task.source == kind] for kind in ("mined", "mutated")]
    for kind in kinds:
        random.Random(0).shuffle(kind)
    longest = max(map(len, kinds), default=0)
    turns = [kind[index] for index in range(longest) for kind in kinds if index < len(kind)]
    for number, task in enumerate(turns[:count], start=1):
        print(f"\n{'-' * 80}\n{number}. {task.id} ({task.source})\n\n{task.problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--statements", type=int, default=20)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    arguments = ["--limit", str(options.limit), "--repeat", str(options.repeat)]
    arguments += ["--model", options.model] if options.model else []
    rows: list[dict[str, Any]] = []
    for folder in options.folders:
        rows.append(start(folder.resolve(), options.out.resolve() / folder.name, arguments))
        print(json.dumps(rows[-1]), flush=True)
    files = [options.out / row["repository"] / "tasks.jsonl" for row in rows]
    show_statements([task for file in files if file.is_file() for task in load_all(file)], options.statements)
    print(json.dumps({"start": rows}))


if __name__ == "__main__":
    main()
