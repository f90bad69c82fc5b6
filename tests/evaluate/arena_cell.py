"""A stand-in for a training of the arena: writes what one writes, at once, as the settings "do" says.

do=wait: begins only when another one waits, too; do=fail: fails; do=hang: runs until it is stopped.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path


def stopped(*_: object) -> None:
    note("stopped")
    raise SystemExit(1)


def note(event: str) -> None:
    with (root / "events").open("a") as events:
        events.write(f"{event} {out.relative_to(root / 'out')}\n")


start, folder, *sets = sys.argv[1:]
out = Path(folder)
root = next(parent for parent in out.parents if parent.name == "out").parent
settings = dict(line.split("=", 1) for line in sets)
kind = (root / "do" / out.relative_to(root / "out")).with_suffix(".txt")
do = kind.read_text() if kind.is_file() else ""
note("began")
if do == "hang":
    signal.signal(signal.SIGTERM, stopped)
    (root / "hanging").touch()
    while True:
        signal.pause()
if do == "wait":
    mode = "r" if settings["seed"] == "0" else "w"
    (root / "meet").open(mode).close()  # a FIFO: each side waits for the other
if do == "fail":
    raise SystemExit("out of memory")
for split in ("test", "test_unseen"):
    (out / split).mkdir(parents=True, exist_ok=True)
    result = {"instance_id": "task", "sample": 0, "resolved": start != "-", "exit_status": "unresolved"}
    (out / split / "results.jsonl").write_text(json.dumps(result) + "\n")
    (out / split / "summary.json").write_text("{}")
(out / "seconds").write_text("1.5\n")
if start == "-":
    (out / "run" / "start").mkdir(parents=True)
    (out / "run" / "start" / "model.safetensors").write_text(" ".join(sets))
note("ended")
