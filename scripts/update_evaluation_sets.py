"""Write the list of an evaluation set from a file of its rows: NAME ROWS SOURCE.

python scripts/update_evaluation_sets.py swe-bench-verified verified.parquet SWE-bench/SWE-bench_Verified
"""

from __future__ import annotations

import sys
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.published import EVALUATION_SETS, statement_hash
from hone.tasks.rows import text

DATA = Path(__file__).parent.parent / "hone" / "tasks" / "published" / "data"


def main(name: str, rows: str, source: str) -> None:
    """Write one file."""
    if name not in EVALUATION_SETS:
        sys.exit(f"{name} is none of {', '.join(EVALUATION_SETS)}")
    lines = [f"# {source}", "# id, repository, base commit, hash of the statement"]
    for row in read_rows(Path(rows)):
        if isinstance(row, TaskError):
            raise row
        fields = [text(row, column) for column in ("instance_id", "repo", "base_commit", "problem_statement")]
        lines.append(" ".join([*fields[:3], statement_hash(fields[3])]))
    (DATA / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
