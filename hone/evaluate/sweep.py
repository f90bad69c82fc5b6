"""A sweep: the same tasks at several temperatures, each an evaluation of its own, and one table of all.

temperature-0.7/   an evaluation, complete in itself
sweep.json         the figures of all, in the order of the temperatures as they were named
report.html        the same as a page
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.evaluate.report import sweep_page
from hone.evaluate.runner import REPORT, write

SWEEP = "sweep.json"


def directory(temperature: float) -> str:
    """Where the evaluation at one temperature lies, below that of the sweep."""
    return f"temperature-{temperature:g}"


def conclude(out: Path, summaries: Mapping[float, Mapping[str, Any]]) -> dict[str, Any]:
    """Write the table of all temperatures and its page; returns what `sweep.json` holds."""
    evaluations = [
        {
            "temperature": temperature,
            "directory": directory(temperature),
            **{name: value for name, value in summary.items() if name != "args"},
        }
        for temperature, summary in summaries.items()
    ]
    first = next(iter(summaries.values()))
    sweep = {"model": first["model"], "data": first["data"], "evaluations": evaluations}
    write(out / SWEEP, json.dumps(sweep, indent=1) + "\n")
    write(out / REPORT, sweep_page(sweep))
    return sweep
