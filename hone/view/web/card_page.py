"""Render the data card of a file of tasks as a page."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.grading.variation import FACTORS
from hone.view.web.html import render
from hone.view.web.links import FileLinks

SHOWN = 500  # tasks listed; the JSON file has all
_REASONS = {
    "no_repository": "no repository",
    "no_verdict": "no verdict: invalid, or the grader failed",
    "unsolvable": "unsolvable: the gold patch never resolves it",
    "already_solved": "already solved without a patch",
    "flaky": "flaky",
}
_KINDS = {
    "value": "a constant or an exception",
    "parameter": "a parameter",
    "form": "another expression",
    "truth": "the assertion itself",
}


def card_page(card: Mapping[str, Any], data: str) -> str:
    """Return the page of a card; see `hone.curate.card`.

    Args:
        data: name of the card's JSON file, beside the page.
    """
    tasks = card["tasks"]
    plain = card["runs"][0]
    return render(
        "card.html.jinja",
        FileLinks(Path(), {}),
        live=False,
        card=card,
        data=data,
        address=urllib.parse.quote(data, errors="replace"),
        counts=card["counts"],
        refused=[each for each in tasks if not each["admitted"]][:SHOWN],
        admitted=[each for each in tasks if each["admitted"]][:SHOWN],
        reasons=_REASONS,
        kinds=_KINDS,
        factors=FACTORS,
        runs=[{name: run[name] for name in FACTORS if run[name] != plain[name]} for run in card["runs"]],
        shown=SHOWN,
    )
