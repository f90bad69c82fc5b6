from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.config import resolve
from hone.evaluate.runner import EvalProgress
from hone.launch.evaluate import EvaluationDisplay, as_measured, at_temperature


class Shown:
    def __init__(self) -> None:
        self.done, self.status = 0, ""

    def set_done(self, done: int, total: int | None = None) -> None:
        self.done = done

    def set_status(self, text: str) -> None:
        self.status = text


def test_progress_shows_resolved_time_left_and_cost(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("hone.launch.evaluate.time.monotonic", lambda: now[0])
    shown = Shown()
    display = EvaluationDisplay(shown, priced=True)
    display.on_sample(EvalProgress(planned=50, ended=20, resolved=6))  # ended before this process began
    assert (shown.done, shown.status) == (20, "resolved 6, cost 0")
    now[0] += 60
    display.on_sample(EvalProgress(planned=50, ended=25, resolved=9, cost=0.125))
    assert (shown.done, shown.status) == (25, "resolved 9, about 5 min 0 s left, cost 0.125")
    display.on_sample(EvalProgress(planned=50, ended=50, resolved=30, cost=0.25))
    assert (shown.done, shown.status) == (50, "resolved 30, cost 0.25")
    free = Shown()
    EvaluationDisplay(free, priced=False).on_sample(EvalProgress(planned=2, ended=1, resolved=1))
    assert free.status == "resolved 1"


def test_one_temperature_of_a_recipe_is_no_sweep():
    recipe = resolve(None, ["evaluate.temperatures=[0]"])
    measured = as_measured(recipe)
    assert (measured.sampling.temperature, measured.evaluate.temperatures) == (0, ())


def test_sweep_equals_single_evaluations(tmp_path: Path):
    swept = resolve(None, ["evaluate.temperatures=[0.2, 0.9]", "evaluate.samples=4"])
    alone = resolve(None, ["sampling.temperature=0.9", "evaluate.samples=4"])
    one = at_temperature(swept, 0.9)
    assert json.loads(one.model_dump_json()) == json.loads(alone.model_dump_json())
