"""Debugging tasks: the score is the passing share of all collected tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.grading import Grader, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.formats import FORMATS
from hone.types import Verdict

pytestmark = pytest.mark.sandbox

CODE = "def double(a):\n    return a + 2\n\n\ndef name():\n    return 'x'\n"
TESTS = """import pytest
from code_under import double, name


@pytest.mark.parametrize("a", [1, 2, 3])
def test_double(a):
    assert double(a) == 2 * a


def test_name():
    assert name() == "x"
"""
ROW = {
    "task_id": "double",
    "problem_statement": "double(1) gives 3",
    "prompt": '[{"role": "user", "content": "double(1) gives 3"}]',
    "extra_info": {
        "entrypoint": "python -m pytest --tb=no -s test.py",
        "files": [{"path": "code_under.py", "content": CODE}, {"path": "test.py", "content": TESTS}],
        "task_name": "double",
    },
}


def _patch(*lines: str) -> str:
    """`code_under.py` with another second line, and more lines."""
    header = "diff --git a/code_under.py b/code_under.py\n--- a/code_under.py\n+++ b/code_under.py\n"
    body = "".join(f"+{line}\n" for line in lines)
    return f"{header}@@ -1,2 +1,{1 + len(lines)} @@\n def double(a):\n-    return a + 2\n{body}"


def _graded(tmp_path: Path, *patches: str) -> list[Verdict]:
    task = FORMATS["debugging"].read(ROW)

    async def scenario() -> list[Verdict]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=tmp_path)
            return [await grader.grade_uncached(task, patch) for patch in patches]

    return asyncio.run(scenario())


def test_score_is_the_passing_share_of_collected_tests(tmp_path: Path) -> None:
    fixed, buggy = _graded(tmp_path, _patch("    return a * 2"), "")
    assert (fixed.resolved, fixed.score, len(fixed.tests)) == (True, 1.0, 4)
    assert (buggy.resolved, buggy.score) == (False, 0.5)  # double(2) is right by chance


def test_missing_or_skipped_tests_are_unresolved(tmp_path: Path) -> None:
    skipping, ending = _graded(
        tmp_path,
        _patch("    import pytest", "    pytest.skip('later')"),
        _patch("    return a * 2", "", "import pytest", "pytest.skip('all', allow_module_level=True)"),
    )
    assert not skipping.resolved
    assert not ending.resolved
