"""The process of one experiment tracker: reads records from stdin until its end.

    python -m hone.train.sinks.worker    first line: options of `trackers`; then {"kind", "step", "metrics"}

A process of its own, because a tracker may block, print, patch libraries or hang at exit; killing it loses
nothing but its unsent records. On an error the last line of its output says why, and the exit code is 1.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading

from hone.train.sinks.trackers import TRACKERS

CLOSE_S = 120  # from the end of the input, also of a run that was killed, until this process ends


def main(close_s: int = CLOSE_S) -> int:
    options = json.loads(sys.stdin.readline())
    records: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            records.put(line)
        signal.alarm(close_s)  # its default action ends the process, whatever the tracker waits for
        records.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        sink = TRACKERS[options["tracker"]](options)
        while line := records.get():
            record = json.loads(line)
            sink.write(record["kind"], record["step"], record["metrics"])
        sink.close()
    except Exception as error:
        lines = str(error).strip().splitlines()
        print(f"{type(error).__name__}: {lines[0] if lines else 'no message'}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
