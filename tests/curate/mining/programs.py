"""Runs the programs of examples in this process, on the tree before and after a fix."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from hone.curate.mining.claims import TEST
from hone.curate.mining.examples import RunFiles
from hone.grading.run import TestRun
from hone.types import TestStatus


def executes(before: Path, after: Path) -> RunFiles:
    async def run(files: Mapping[str, str], patch: str) -> TestRun:
        statuses = {
            f"{name}::{TEST}": _status(text, after if patch else before) for name, text in files.items()
        }
        return TestRun(statuses=statuses)

    return run


def _status(text: str, tree: Path) -> TestStatus:
    others = {name: module for name, module in sys.modules.items() if name.partition(".")[0] != "shop"}
    with (
        mock.patch.dict(sys.modules, others, clear=True),
        mock.patch.object(sys, "path", [str(tree), *sys.path]),
    ):
        names: dict[str, object] = {}
        try:
            exec(compile(text, "example", "exec"), names)
            names[TEST]()  # type: ignore[operator]
        except Exception:
            return TestStatus.FAILED
    return TestStatus.PASSED
