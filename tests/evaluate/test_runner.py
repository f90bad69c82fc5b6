from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hone.evaluate.errors import EvaluateError
from hone.evaluate.results import append, read
from hone.evaluate.runner import EvalInfo, EvalProgress, claim, evaluate, require_own
from hone.evaluate.settings import EvaluateSettings
from hone.rollout.store import load
from hone.types import Task
from tests.rollout.memory import World
from tests.rollout.real import gold, open_context, script, tasks


def run(
    root: Path, agent: Any, *, samples: int = 1, fingerprint: str = "f", **options: Any
) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with open_context(root, agent, **options) as context:
            return await evaluate(
                tasks(3),
                context,
                EvaluateSettings(samples=samples),
                root / "out",
                EvalInfo(
                    model="scripted",
                    data="curriculum",
                    seed=0,
                    identity={"settings": fingerprint},
                    trainable=False,
                    args={"samples": samples},
                    meta={"model": "scripted", "api_base": None, "step_limit": 3, "max_tokens": 16},
                ),
                progress=seen.append,
            )

    seen: list[EvalProgress] = []
    summary = asyncio.run(go())
    assert seen[-1].ended == seen[-1].planned == 3 * samples
    return summary


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.sandbox
def test_evaluation_counts_and_stores_resolved_samples(tmp_path: Path):
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
    predictions = {p["instance_id"]: p for p in lines(out / "preds.jsonl")}
    assert {task for task, made in predictions.items() if made["model_patch"]} == right
    assert json.loads((out / "preds.json").read_text()) == predictions


@pytest.mark.sandbox
def test_each_sample_has_a_directory_with_the_documented_files(tmp_path: Path):
    summary = run(tmp_path, script(lambda task, rollout_id: [gold(task)]))
    assert {"model", "data", "total", "resolved", "resolve_rate", "errors", "no_patch"} <= set(summary)
    assert {"avg_steps", "avg_elapsed_s", "timestamp", "args"} <= set(summary)
    for row in lines(tmp_path / "out" / "results.jsonl"):
        assert {"instance_id", "resolved", "exit_status", "patch_source", "n_steps", "error"} <= set(row)
        assert row["elapsed"] > 0
        assert re.fullmatch(re.escape(row["instance_id"]) + r"__\d{19}", row["run_dir"])
        folder = tmp_path / "out" / "rollouts" / row["run_dir"]
        traj = json.loads((folder / "traj.json").read_text())
        assert {"messages", "step_debug", "info", "trajectory_format"} <= set(traj)
        assert {"instance_id", "exit_status", "error", "steps", "patch_source"} <= set(traj["info"])
        meta = json.loads((folder / "meta.json").read_text())
        wanted = {"instance_id": row["instance_id"], "model": "scripted", "api_base": None, "step_limit": 3}
        assert {**wanted, "max_tokens": 16}.items() <= meta.items()
        assert (folder / "patch.diff").read_text().startswith("diff --git ")
        assert load(folder).patch == (folder / "patch.diff").read_text()


def test_directory_holds_one_evaluation_and_needs_resume(tmp_path: Path):
    out, mine, other = tmp_path / "out", {"seed": 0}, {"seed": 1}
    claim(out, other)
    claim(out, mine)  # nothing has ended yet: the corrected evaluation may have the directory
    require_own(out, other, resume=False)
    (out / "results.jsonl").touch()
    with pytest.raises(EvaluateError, match="already holds results of this evaluation: add --resume"):
        require_own(out, mine, resume=False)
    claim(out, mine)
    for resume in (False, True):
        with pytest.raises(EvaluateError, match=r"holds another evaluation \(seed: 1 here, 0 in .*out\)"):
            require_own(out, other, resume=resume)
    below = tmp_path / "sweep" / "temperature-0.5"
    claim(tmp_path / "sweep", mine)
    claim(below, mine)
    (below / "results.jsonl").touch()
    with pytest.raises(EvaluateError, match="add --resume"):
        require_own(tmp_path / "sweep", mine, resume=False)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "results.jsonl").touch()
    with pytest.raises(EvaluateError, match="an evaluation of an earlier version of Hone"):
        claim(tmp_path / "foreign", mine)
    (tmp_path / "file").touch()
    with pytest.raises(EvaluateError, match=r"cannot write .*file.* \((file exists|not a directory)\)"):
        claim(tmp_path / "file", mine)


def test_every_sample_has_its_own_seed(tmp_path: Path):
    def seeds(run_seed: int) -> list[int | None]:
        out = tmp_path / str(run_seed)
        info = EvalInfo(model="m", data="d", seed=run_seed, identity={}, trainable=False, args={})
        context = World([]).context(tmp_path)
        asyncio.run(evaluate(tasks(2), context, EvaluateSettings(samples=2), out, info))
        return [load(folder).seed for folder in sorted((out / "rollouts").iterdir())]

    assert len({*seeds(0), *seeds(1)}) == 8


@pytest.mark.sandbox
def test_evaluation_resumes_and_retries_faults(tmp_path: Path):
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


def test_last_line_of_a_sample_counts(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    append(path, result("a", 0, False))
    append(path, result("a", 0, True))
    assert [row["resolved"] for row in read(path).values()] == [True]
    path.write_text('{"instance_id": 1}\n')
    with pytest.raises(EvaluateError, match="line 1"):
        read(path)
