"""Coverage by instrumentation: a call of `hit` in each block records that a test file reaches it.

Only copies of the code are instrumented; a task never contains a probe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import libcst as cst

from hone.curate.mutation.source import Edit, Source, apply, is_text

REPORTER = (
    "test_hone_probe.py"  # runs after the test file, in its process, and prints a bit mask of the blocks
)
REPORTING = {
    "hone_probe.py": "reached = set()\nhit = reached.add\n",  # at the repository's root: tests import from it
    REPORTER: (
        "def test_report():\n"
        "    from hone_probe import reached\n\n"
        "    print(f'\\nhone-reached {sum(1 << block for block in reached):x}.')\n"
    ),
}
_IMPORT = "__import__('hone_probe')"
_REPORT = re.compile(r"^hone-reached ([0-9a-f]+)\.$", re.MULTILINE)


def instrument(source: Source, blocks: Iterable[cst.BaseSuite], first: int) -> str:
    """Return the file with a call of `hit` in each block; its blocks are numbered from `first`."""
    edits = [edit for number, block in enumerate(blocks, first) for edit in _hit(source, block, number)]
    data = apply(source.data, edits)
    assert data is not None, "insertions do not overlap"
    return data.decode()


def _hit(source: Source, block: cst.BaseSuite, number: int) -> list[Edit]:
    call = f"{_IMPORT}.hit({number})"
    statements = [statement for statement in block.body if not is_text(statement)]
    if not statements:
        return []
    start = source.span(statements[0])[0]
    if isinstance(block, cst.SimpleStatementSuite):
        return [Edit(start, start, f"{call}; ")]
    return [Edit(start, start, f"{call}{source.newline}{source.indentation(statements[0])}")]


def reached(log: str) -> int | None:
    """Return the bit mask of the blocks that a test file reaches; None where the log has no report."""
    found = _REPORT.search(log)
    return int(found[1], 16) if found else None


def is_named_after(path: str, test_file: str) -> bool:
    """Return whether a test file is named after a module."""
    stem = PurePosixPath(path).stem
    if stem == "__init__":
        stem = PurePosixPath(path).parent.name
    return stem.strip("_") in PurePosixPath(test_file).stem
