"""The scripts in examples/, each run as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.formats import save
from tests.cli.endpoint import endpoint
from tests.cli.fake_run import make_run
from tests.e2e.small_run import SMALL
from tests.rollout.real import SCAFFOLD, gold, tasks

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIMEOUT_S = 1200.0
CARD = {"id": "big-model", "object": "model", "owned_by": "unknown"}
TINY = [f"{name}={SMALL[name]}" for name in SMALL if name not in ("train.steps", "rollout.rewards")]
# so small a model resolves nothing; outcomes that differ in worth give it a gradient all the same
WORTH = {"unresolved": -0.2, "no_patch": -0.6, "format_limit": -0.7, "context_limit": -0.8}
TINY += [f"rollout.rewards.{outcome}={reward}" for outcome, reward in WORTH.items()]


def example(name: str, *arguments: object, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_example_says_how_to_run_it_and_has_a_test():
    tests = Path(__file__).read_text()
    for path in EXAMPLES:
        assert f"python examples/{path.name}" in path.read_text().replace("\\\n", ""), path.name
        assert f'"{path.name}"' in tests, path.name
    assert len(EXAMPLES) == 10
    assert len((ROOT / "examples" / "grpo_in_one_file.py").read_text().splitlines()) <= 150


@pytest.mark.sandbox
def test_sandbox_example():
    assert example("open_a_sandbox.py").splitlines() == [
        "output: 285",
        "exit code: 3",
        "timed out: True",
        "read back: kept",
    ]


@pytest.mark.full
@pytest.mark.sandbox
def test_grading_example():
    fix, nothing, cheat = example("grade_a_patch.py").splitlines()
    assert fix == "reference fix: resolved True, 8 of 8 tests pass"
    assert nothing.startswith("no change: resolved False")
    assert cheat.startswith("early exit: resolved False, 0 of 8 tests pass, tampered: sitecustomize.py")


@pytest.mark.full
@pytest.mark.sandbox
def test_agents_example():
    assert re.findall(r"(\w+) train-\d+ (\w+)", example("run_an_agent.py")) == [
        ("oracle", "resolved"),
        ("oracle", "resolved"),
        ("noop", "no_patch"),
        ("noop", "no_patch"),
    ]


def reply_with_fix(messages: list[dict[str, Any]]) -> str:
    if any(message["role"] == "assistant" for message in messages):
        return SCAFFOLD.reply("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    text = "\n".join(message["content"] for message in messages)
    (task,) = [task for task in tasks(2) if task.problem in text]
    return SCAFFOLD.reply(gold(task))


@pytest.mark.full
@pytest.mark.sandbox
def test_own_agent_example():
    with endpoint(reply_with_fix, CARD) as served:
        said = example("my_own_agent.py", served.url, "big-model")
    assert said.startswith("train-0000: resolved\ndiff --git")


@pytest.mark.full
@pytest.mark.sandbox
def test_api_model_example(tmp_path: Path):
    save(tasks(2), tmp_path / "tasks.jsonl")
    with endpoint(reply_with_fix, CARD) as served:
        arguments = ("tasks.jsonl", f"{served.url}/v1", "big-model")
        said = example(
            "evaluate_api_model_on_my_repository.py", *arguments, cwd=tmp_path, OPENAI_API_KEY="a-key"
        )
        assert set(served.headers) == {"Bearer a-key"}
    first, second, *rows = said.splitlines()
    assert first.startswith("resolved 100% of 2 (")
    assert second == "tokens: 400 in prompts, 40 in replies"
    assert sorted(rows)[0].startswith("train-0000: resolved, 2 turns, ")
    assert (tmp_path / "results" / "report.html").is_file()


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(TIMEOUT_S)
def test_own_reward_example_and_reading_its_run(tmp_path: Path):
    run = tmp_path / "run"
    said = example("my_own_reward.py", f"run_dir={run}", "train.steps=2", *TINY)
    assert re.match(r"2 steps, reward [+-]\d\.\d\d, model in ", said)
    lines = example("read_a_run.py", run).splitlines()
    assert re.fullmatch(r"step   1  reward [+-]\d\.\d\d  resolved \d+%", lines[1])
    assert lines[2].startswith("rollouts: ")


def test_reading_example_needs_steps_with_rewards(tmp_path: Path):
    run = make_run(tmp_path / "run")
    text = (run / "metrics.jsonl").read_text().replace('"loss": 0.5', '"reward": 0.5')
    (run / "metrics.jsonl").write_text(text)
    lines = example("read_a_run.py", run).splitlines()
    assert lines[:2] == ["step   0  reward +0.50  resolved 50%", "step   1  reward +0.50  resolved 100%"]
    assert lines[2].startswith("rollouts: 3 resolved, 1 turn_limit")
    assert lines[3] == "last resolved: train-0007, 1 turns; it ended with:"


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(TIMEOUT_S)
def test_own_algorithm_example(tmp_path: Path):
    said = example("my_own_algorithm.py", f"run_dir={tmp_path / 'run'}", "train.steps=1", *TINY)
    assert re.fullmatch(r"step 0: reward [+-]\d\.\d\d, clipped \d+\.\d%\n", said)


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(TIMEOUT_S)
def test_teacher_example(tmp_path: Path):
    taught, trained = example("teacher_traces_to_sft.py", tmp_path, 12).splitlines()
    kept = re.fullmatch(r"the teacher resolved \d+% of 12 tasks", taught)
    assert kept is not None
    assert re.match(r"trained on \d+ traces, loss \d+\.\d+, model in ", trained)


@pytest.mark.full
@pytest.mark.e2e
@pytest.mark.timeout(TIMEOUT_S)
def test_grpo_example(tmp_path: Path):
    said = example(
        "grpo_in_one_file.py", "--folder", tmp_path, "--steps", 1, "--demonstrations", 40, "--held-out", 4
    )
    before, step, after = said.splitlines()
    assert re.fullmatch(r"before: \d+% of 4 held-out tasks", before)
    assert re.fullmatch(r"step 0: reward [+-]\d\.\d\d, resolved \d+%", step)
    assert re.fullmatch(r"after: \d+% of 4 held-out tasks", after)
    assert (tmp_path / "final" / "model.safetensors").is_file()
