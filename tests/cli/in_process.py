"""The `hone` command in this process, which saves the second that imports take in a new one."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest

from hone.cli import main

Hone = Callable[..., tuple[int, str, str]]  # arguments -> exit code, stdout, stderr: the fixture `hone`


def hone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself; return its exit code and what it printed."""
    words = ["hone", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        code = main()
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
