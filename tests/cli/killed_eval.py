"""`hone eval` in this process, which kills itself with -9 when its n-th result is about to be written.

Run as: python -m tests.cli.killed_eval N ARGUMENTS...
"""

from __future__ import annotations

import sys

from tests.e2e.killed_training import die_at

if __name__ == "__main__":
    from hone.cli import main
    from hone.evaluate import results

    die_at(results, "append", int(sys.argv[1]))
    sys.argv = ["hone", "eval", *sys.argv[2:]]
    main()
