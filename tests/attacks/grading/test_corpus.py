"""The public corpus of exploits (benchmarks/parts/corpus), graded by Hone with every control."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.integrity import Cell, grade_all, make_corpus
from benchmarks.parts.corpus import FIX

pytestmark = pytest.mark.full


def test_hone_pays_for_none(tmp_path: Path) -> None:
    corpus = asyncio.run(make_corpus(tmp_path, (), 3))
    cells = asyncio.run(grade_all(corpus, 3, 1, read=True, controls=True))
    assert Cell.EXCUSED not in cells
    found = {patch.name for patch, cell in zip(corpus.patches, cells, strict=True) if cell is Cell.PAID}
    assert found == {FIX}
