from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hone.evaluate.errors import EvaluateError
from hone.evaluate.results import append, read
from hone.evaluate.runner import Progress, compare_runs, evaluate
from hone.evaluate.settings import EvaluateSettings
from hone.types import Task
from tests.rollout.real import gold, open_parts, script, tasks


def run(
    root: Path, agent: Any, *, samples: int = 1, fingerprint: str = "f", **options: Any
) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with open_parts(root, agent, **options) as parts:
            return await evaluate(
                tasks(3),
                parts,
                EvaluateSettings(samples=samples),
                root / "out",
                model="scripted",
                data="curriculum",
                seed=0,
                fingerprint=fingerprint,
                args={"samples": samples},
                progress=seen.append,
            )

    seen: list[Progress] = []
    summary = asyncio.run(go())
    assert seen[-1].ended == seen[-1].planned == 3 * samples
    return summary


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.sandbox
def test_an_evaluation_counts_what_was_resolved_and_writes_it_down(tmp_path: Path):
    right = {tasks(3)[0].id, tasks(3)[1].id}
    agent = script(lambda task, rollout_id: [gold(task)] if task.id in right else [])
    summary = run(tmp_path, agent, samples=2)
    assert (summary["total"], summary["n"], summary["resolved"], summary["errors"]) == (6, 6, 4, 0)
    assert summary["resolve_rate"] == pytest.approx(2 / 3)
    assert summary["low"] < 2 / 3 < summary["high"]
    assert summary["pass_at"] == {"1": pytest.approx(2 / 3), "2": pytest.approx(2 / 3)}
    assert summary["outcomes"] == {"resolved": 4, "no_patch": 2}
    assert (summary["no_patch"], summary["timeouts"], summary["tokens"]) == (2, 0, 0)
    assert sum(group["n"] for group in summary["groups"].values()) == 6
    assert set(summary["groups"]) == {task.metadata["family"] for task in tasks(3)}
    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text()) == summary
    rows = lines(out / "results.jsonl")
    assert {(row["instance_id"], row["sample"]) for row in rows} == {
        (task.id, sample) for task in tasks(3) for sample in range(2)
    }
    assert all((out / "rollouts" / row["run_dir"] / "traj.json").is_file() for row in rows)
    predictions = {p["instance_id"]: p["model_patch"] for p in lines(out / "preds.jsonl")}
    assert {task for task, patch in predictions.items() if patch} == right


@pytest.mark.sandbox
def test_an_evaluation_goes_on_where_it_stopped_and_runs_faults_again(tmp_path: Path):
    worked: Counter[str] = Counter()

    def commands(task: Task, rollout_id: str) -> list[str]:
        worked[task.id] += 1
        return []

    failing = run(tmp_path, script(commands), fails=lambda i: i >= 2, attempts=1, concurrent_episodes=1)
    assert (failing["errors"], failing["n"], failing["total"]) == (1, 2, 3)
    with (tmp_path / "out" / "results.jsonl").open("a") as results:
        results.write('{"instance_id": "cut sho')
    (tmp_path / "out" / "rollouts" / "t__g0__i0__1").mkdir()  # stored, but the process died before its line
    summary = run(tmp_path, script(commands))
    assert (summary["errors"], summary["n"]) == (0, 3)
    named = {row["run_dir"] for row in lines(tmp_path / "out" / "results.jsonl")}
    assert {path.name for path in (tmp_path / "out" / "rollouts").iterdir()} == named
    assert worked == {task.id: 1 for task in tasks(3)}
    assert [row["exit_status"] for row in lines(tmp_path / "out" / "results.jsonl")] == [
        "no_patch",
        "no_patch",
        "sandbox_error",
        "no_patch",
    ]
    with pytest.raises(EvaluateError, match="holds another evaluation"):
        run(tmp_path, script(commands), fingerprint="other")


def result(task: str, sample: int, resolved: bool) -> dict[str, Any]:
    status = "resolved" if resolved else "unresolved"
    return {"instance_id": task, "sample": sample, "resolved": resolved, "exit_status": status}


def test_two_runs_are_compared_task_by_task(tmp_path: Path):
    for name, better in (("a", 10), ("b", 1)):
        (tmp_path / name).mkdir()
        for i in range(12):
            append(tmp_path / name / "results.jsonl", result(str(i), 0, i < better))
    fault = {**result("0", 1, False), "exit_status": "engine_error"}  # says nothing about either run
    append(tmp_path / "a" / "results.jsonl", fault)
    comparison = compare_runs(tmp_path / "a", tmp_path / "b")
    assert (comparison.first_better, comparison.second_better, comparison.ties) == (9, 0, 3)
    assert comparison.p_value == pytest.approx(2 / 2**9)
    with pytest.raises(EvaluateError, match="no evaluation"):
        compare_runs(tmp_path / "a", tmp_path / "c")


def test_the_last_line_of_a_sample_counts_and_a_line_that_is_no_result_is_named(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    append(path, result("a", 0, False))
    append(path, result("a", 0, True))
    assert [row["resolved"] for row in read(path).values()] == [True]
    path.write_text('{"instance_id": 1}\n')
    with pytest.raises(EvaluateError, match="line 1"):
        read(path)
