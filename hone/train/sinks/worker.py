"""The process of one experiment tracker: reads records from stdin until its end.

    python -m hone.train.sinks.worker    first line: options of `trackers`; then {"kind", "step", "metrics"}

A process of its own, because a tracker may block, print, patch libraries or hang at exit; killing it loses
nothing but its unsent records. On an error the last line of its output says why, and the exit code is 1.
"""

from __future__ import annotations

import json
import signal
import sys

from hone.train.sinks.trackers import TRACKERS

CLOSE_S = 120  # after this the process ends, whatever the tracker waits for


def main() -> int:
    options = json.loads(sys.stdin.readline())
    try:
        sink = TRACKERS[options["tracker"]](options)
        for line in sys.stdin:
            record = json.loads(line)
            sink.write(record["kind"], record["step"], record["metrics"])
        signal.alarm(CLOSE_S)  # also when the trainer was killed
        sink.close()
    except Exception as error:
        lines = str(error).strip().splitlines()
        print(f"{type(error).__name__}: {lines[0] if lines else 'no message'}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
