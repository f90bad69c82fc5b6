"""Coverage by instrumentation: a call of `hit` in each block records the test files that reach it.

Only copies of the code are instrumented; a task never contains a probe.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import libcst as cst

from hone.curate.mutation.probe import REPORT
from hone.curate.mutation.source import Edit, Source, apply, is_text

PROBE = "hone_probe.py"  # at the root of the repository, which tests import from
REPORTER = "test_hone_probe.py"
REPORTING = {
    PROBE: Path(__file__).with_name("probe.py").read_text(encoding="utf-8"),
    REPORTER: "def test_report():\n    import hone_probe\n\n    print(f'\\n{hone_probe.report()}')\n",
}
_IMPORT = "__import__('hone_probe')"


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


def reached(log: str) -> Mapping[str, int] | None:
    """Return test file -> bit mask of the blocks it reaches; None where the log has no complete report."""
    for line in log.splitlines():
        if line.startswith(REPORT):
            try:
                body = zlib.decompress(base64.b64decode(line.removeprefix(REPORT).strip(), validate=True))
            except (binascii.Error, zlib.error):
                return None
            return {file: int(bits, 16) for file, bits in json.loads(body).items()}
    return None


def is_named_after(path: str, test_file: str) -> bool:
    """Return whether a test file is named after a module."""
    stem = PurePosixPath(path).stem
    if stem == "__init__":
        stem = PurePosixPath(path).parent.name
    return stem.strip("_") in PurePosixPath(test_file).stem
