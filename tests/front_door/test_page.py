"""The snippets of docs/33-python.md run as they are printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "33-python.md"


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(names: dict[str, Any], *, trains: bool) -> None:
    for snippet in snippets():
        if trains or "hone.train(" not in snippet:
            exec(compile(snippet, str(PAGE), "exec"), names)


@pytest.mark.sandbox
def test_snippets_run_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    async def notebook() -> str:
        run(names, trains=False)
        return await names["list_files"]()

    assert "tmp" in asyncio.run(notebook()).split()
    said, shown = capsys.readouterr()
    assert "False\nTrue\nresolved 1.0 2\n" in said
    assert "100% of 4 (" in said
    assert "evaluating  4/4" in shown
    assert "notes.txt" in names["patch"]


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_snippets_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run(names, trains=True)
    assert names["report"].steps == 2
    assert names["run"].steps.num_rows == 2
    assert "training  2/2" in capsys.readouterr().err
