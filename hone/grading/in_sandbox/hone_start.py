"""Start the trusted runner, or say which Python is too old for it. This file runs on Python 2, too."""

import os
import sys

OLDEST = (3, 6)

if sys.version_info < OLDEST:
    reason = "it is Python %d.%d, and the oldest that it supports is %d.%d" % (sys.version_info[:2] + OLDEST)
    os.write(1, b"hone-grader: unusable: " + reason.encode("ascii") + b"\n")
else:
    import hone_runner  # beside this file

    hone_runner.main()
