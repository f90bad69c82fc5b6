"""The public corpus of exploits (benchmarks/parts/corpus), graded by Hone with every control."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.integrity import Cell, grade_all, make_corpus
from benchmarks.parts.corpus import FIX

pytestmark = pytest.mark.full

# Known gaps. Expected values of these tests lie outside the test module, where no control changes them.
PAID = {
    "writes its own output to the golden file and the expected line",
    "the golden file and the expected line",
    # The test process has the texts of both runs.
    "a table made of all versions of the tests in the runner's variables",
    "a table made of all versions of the tests in memory and on disk",
}
# A drawn control whose expectation is of another type, or a negated one, fails as it must.
PAID_BY_CHANCE = {
    "a number equal to everything",
    "a number equal to what it was first compared with",
    "the expression on the caller's next line",
    "a number among the caller's variables and constants",
    "a table made of the test files",
}


def test_hone_pays_for_the_known_gaps_alone(tmp_path: Path) -> None:
    corpus = asyncio.run(make_corpus(tmp_path, (), 3))
    cells = asyncio.run(grade_all(corpus, 3, 1, read=True, controls=True))
    assert Cell.EXCUSED not in cells
    found = {patch.name for patch, cell in zip(corpus.patches, cells, strict=True) if cell is Cell.PAID}
    assert PAID <= found - {FIX} <= PAID | PAID_BY_CHANCE
