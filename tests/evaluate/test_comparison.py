from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hone.evaluate.comparison import compare_runs, meaning
from hone.evaluate.errors import EvaluateError
from hone.evaluate.results import append
from hone.evaluate.statistics import compare


def evaluation(
    folder: Path, resolved: dict[str, list[bool]], *, args: dict[str, Any] | None = None, **more: Any
) -> Path:
    """A finished evaluation: task -> resolved, one per sample."""
    folder.mkdir()
    for task, samples in resolved.items():
        for sample, won in enumerate(samples):
            status = "resolved" if won else "unresolved"
            append(
                folder / "results.jsonl",
                {
                    "instance_id": task,
                    "sample": sample,
                    "resolved": won,
                    "exit_status": status,
                    "run_dir": f"{task}__{sample}",
                    "n_steps": 4,
                    **more,
                },
            )
    if args is not None:
        total = sum(map(len, resolved.values()))
        summary = {"model": folder.name, "cost": 0.5 * total, "total": total, "args": args}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_runs_are_compared_task_by_task(tmp_path: Path):
    first = evaluation(tmp_path / "a", {str(i): [i < 10] for i in range(12)})
    second = evaluation(tmp_path / "b", {str(i): [i < 1] for i in range(12)})
    fault = {"instance_id": "0", "sample": 1, "resolved": False, "exit_status": "engine_error"}
    append(first / "results.jsonl", fault)  # says nothing about either run
    compared = compare_runs(first, second)
    paired = compared.paired
    assert (paired.first_better, paired.second_better, paired.ties) == (9, 0, 3)
    assert paired.p_value == pytest.approx(2 / 2**9)
    assert [task.id for task in compared.changed] == [str(i) for i in range(1, 10)]
    assert {task.gain for task in compared.changed} == {-1.0}
    assert compared.outcomes == {"resolved": (10, 1), "unresolved": (2, 11), "engine_error": (1, 0)}
    assert "evidence that the first run is better" in compared.meaning


def test_changed_tasks_are_ordered_by_gain(tmp_path: Path):
    first = evaluation(
        tmp_path / "a", {"up": [False] * 2, "down": [True] * 2, "half": [True, False], "x": [True]}
    )
    second = evaluation(tmp_path / "b", {"up": [True] * 4, "down": [False], "half": [True] * 3, "y": [True]})
    compared = compare_runs(first, second)
    assert [(task.id, task.gain) for task in compared.changed] == [("up", 1.0), ("half", 0.5), ("down", -1.0)]
    assert compared.unpaired == (("x",), ("y",))
    assert compared.changed[-1].rollouts == (("down__0", "down__1"), ("down__0",))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (0, 0, "nothing tells them apart"),
        (2, 3, "does not show that either is better"),
        (0, 30, "less than 0.0001. That is evidence that the second run"),
        (9, 1, "would split 9 to 1 or more unevenly with probability 0.021. That is evidence that the first"),
    ],
)
def test_p_value_is_explained_in_words(first: int, second: int, said: str):
    one = {str(i): [i < first] for i in range(first + second + 2)}
    two = {str(i): [first <= i < first + second] for i in range(first + second + 2)}
    assert said in meaning(compare(one, two))


def test_differing_settings_are_listed(tmp_path: Path):
    one = {"model": {"path": "m1"}, "sampling": {"temperature": 1.0, "top_p": 1.0}, "engine": {"threads": 1}}
    two = {"model": {"path": "m2"}, "sampling": {"temperature": 0.2, "top_p": 1.0}, "engine": {"threads": 2},
           "seed": 3}  # fmt: skip
    tasks = {"a": [True]}
    first = evaluation(tmp_path / "a", tasks, args=one)
    second = evaluation(tmp_path / "b", tasks, args=two)
    compared = compare_runs(first, second, ignored=("model", "engine.threads"))
    assert compared.settings == {"sampling.temperature": (1.0, 0.2), "seed": ("not set", 3)}
    assert compared.models == ("a", "b")
    assert compared.figures == {"turns": (4.0, 4.0), "cost": (0.5, 0.5)}
    (second / "summary.json").unlink()
    assert compare_runs(first, second).settings == {}  # an evaluation that did not end names none


def test_figures_of_only_one_run_are_omitted(tmp_path: Path):
    first = evaluation(tmp_path / "a", {"t": [True]}, tokens=10, elapsed=2.0)
    second = evaluation(tmp_path / "b", {"t": [True]}, tokens=30)
    assert compare_runs(first, second).figures == {"turns": (4.0, 4.0), "sampled tokens": (10.0, 30.0)}


def test_incomparable_runs_are_refused(tmp_path: Path):
    run = evaluation(tmp_path / "a", {"t": [True]})
    other = evaluation(tmp_path / "b", {"u": [True]})
    with pytest.raises(EvaluateError, match="share no task"):
        compare_runs(run, other)
    with pytest.raises(EvaluateError, match="gone holds no evaluation"):
        compare_runs(run, tmp_path / "gone")
    (tmp_path / "temperature-0.5").mkdir()
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(EvaluateError, match=r"is a sweep.*such as .*/temperature-0.5"):
        compare_runs(tmp_path, run)
    (run / "summary.json").write_text("{cut")
    with pytest.raises(EvaluateError, match="is not JSON"):
        compare_runs(run, run)
