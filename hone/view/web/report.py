"""Pages that stand alone, one file each: the report of an evaluation or of a sweep, and a comparison of two.

They are the pages of `hone view` without scripts: styles are inside, and nothing is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.evaluate.errors import EvaluateError
from hone.evaluate.runner import SWEEP
from hone.utils.errors import writing
from hone.utils.files import write_file
from hone.view.comparison import comparison_page
from hone.view.evaluation_page import evaluation_page
from hone.view.reader import RunReader
from hone.view.web.html import render
from hone.view.web.links import REPORT, FileLinks
from hone.view.web.pages import comparison_values, evaluation_values


def write_report(out: Path) -> None:
    """Write report.html of the evaluation, or of the sweep over temperatures, in `out`.

    Raises EvaluateError where it cannot be written, ValueError for a damaged file of results.
    """
    if (out / SWEEP).is_file():
        _write(out / REPORT, sweep_report(json.loads((out / SWEEP).read_bytes()), out))
    else:
        _write(out / REPORT, evaluation_report(out))


def write_comparison(first: Path, second: Path, page: Path) -> None:
    """Write the comparison of two evaluations to `page`. Raises EvaluateError where it cannot be written."""
    readers = [RunReader(str(path), path) for path in (first, second)]
    links = FileLinks(page, {reader.name: reader.directory for reader in readers})
    _write(
        page, render("compare.html.jinja", links, live=False, **comparison_values(comparison_page(readers)))
    )


def evaluation_report(out: Path) -> str:
    """Return the report of an evaluation."""
    reader = RunReader(out.resolve().name, out)
    links = FileLinks(out / REPORT, {reader.name: out})
    return render("evaluation.html.jinja", links, live=False, **evaluation_values(evaluation_page(reader)))


def sweep_report(sweep: Mapping[str, Any], out: Path) -> str:
    """Return the report of a sweep in `out`; `sweep` is the content of `sweep.json`."""
    ks = sorted({int(k) for summary in sweep["evaluations"] for k in summary["pass_at"]} - {1})
    inside = {each["directory"]: out / each["directory"] for each in sweep["evaluations"]}
    links = FileLinks(out / REPORT, {"": out, **inside})
    return render("sweep.html.jinja", links, live=False, sweep=sweep, ks=[str(k) for k in ks], out=str(out))


def _write(path: Path, text: str) -> None:
    with writing(path, EvaluateError):
        write_file(path, text)
