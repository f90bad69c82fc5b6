"""`hone tasks validate` in this process, which kills itself with -9 in the n-th call of a journal's method.

Run as: python -m tests.cli.killed_validate METHOD N ARGUMENTS...
"""

from __future__ import annotations

import sys

from tests.e2e.killed_training import die_at

if __name__ == "__main__":
    from hone.cli import main
    from hone.curate.journal import Journal

    die_at(Journal, sys.argv[1], int(sys.argv[2]))
    sys.argv = ["hone", "tasks", "validate", *sys.argv[3:]]
    raise SystemExit(main())
