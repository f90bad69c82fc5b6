"""`hone show` on the run of another trainer, which has rollouts and no ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hone.cli import main
from hone.outcomes import Outcome
from hone.rollout.store import Store
from tests.integrations.rollouts.examples import forked_tree, trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").touch()
    store = Store(tmp_path / "rollouts")
    for index, outcome in enumerate((Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.ENGINE_ERROR)):
        store.save(trajectory(forked_tree(), outcome), group=0, index=index)
    return tmp_path


def show(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["hone", "show", *arguments])
    assert main() == 0


def test_outcomes_of_a_run_without_a_ledger_are_counted(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(monkeypatch, str(run), "--json")

    found = json.loads(capsys.readouterr().out)
    assert found["rollouts"] == 3
    assert found["reward"] == 0.0  # the fault has none
    assert found["outcomes"] == {"resolved": 1, "unresolved": 1, "engine_error": 1}


def test_rollout_of_a_run_without_a_ledger_is_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(monkeypatch, str(run))
    example = capsys.readouterr().out.split("hone show ")[1].strip().replace("\n", "")

    show(monkeypatch, example)

    assert "engine_error" in capsys.readouterr().out
