"""A sweep: one evaluation of the same tasks per temperature, and a table of all.

temperature-0.7/   a complete evaluation
sweep.json         the figures of all, in the given order of temperatures
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
    """Return the name of the evaluation's directory below that of the sweep."""
    return f"temperature-{temperature:g}"


def conclude(out: Path, summaries: Mapping[float, Mapping[str, Any]]) -> dict[str, Any]:
    """Write the table of all temperatures and its page; return the content of `sweep.json`."""
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
