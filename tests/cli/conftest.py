"""What tests of commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hone.cli import main
from tests.cli.in_process import Hone


@pytest.fixture
def hone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hone:
    """`hone` in this process, with what its own processes print."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hone", *map(str, arguments)])
        code = main()
        out, err = capfd.readouterr()
        return code, out, err

    return run
