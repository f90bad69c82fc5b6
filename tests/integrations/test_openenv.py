"""Sessions of the real OpenEnv: rewards by Hone's grading, exact tokens, faults without a reward."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.formats import save
from hone.types import Task
from tests.rollout.real import tasks

pytestmark = [pytest.mark.full, pytest.mark.sandbox]
harness = pytest.importorskip("openenv.core.harness", reason="openenv is not installed")

RECIPE = """
[tasks]
source = "TASKS"
unproven = true
[agent]
kind = "AGENT"
prompts = "tiny"
[rollout]
attempts = 2
retry_delay_s = 0.0
[sampling]
max_tokens = 24
[engine]
context_tokens = 2048
"""


@contextmanager
def factory(root: Path, given: list[Task], *, agent: str, **options: Any) -> Generator[Any]:
    from hone.integrations.openenv import HoneSessionFactory

    save(given, root / "tasks.jsonl")
    text = RECIPE.replace("TASKS", str(root / "tasks.jsonl")).replace("AGENT", agent)
    (root / "recipe.toml").write_text(text)
    places = [f"run_dir={root}/run", f"sandbox.state_dir={root}/state"]
    opened = HoneSessionFactory(root / "recipe.toml", sets=[*places, *options.pop("sets", [])], **options)
    try:
        yield opened
    finally:
        opened.close()


def test_resolved_task_earns_its_reward(tmp_path: Path) -> None:
    with factory(tmp_path, list(tasks(2)), agent="oracle") as made:
        assert isinstance(made, harness.ResourceSessionFactory)
        prompt = made.prompts()[1]
        session = made.create(prompt, seed=3, episode_id="e")
        assert isinstance(session, harness.TrainableSession)
        assert session.initial_messages()[0]["content"] == tasks(2)[1].problem
        assert session.wait_for_completion() == 0
        assert session.fetch_training_trace().turns == []  # a script sampled nothing
        result = session.verify([])
        assert (result.env_reward, result.metrics["outcome"], result.metrics["score"]) == (
            1.0,
            "resolved",
            1.0,
        )
        assert "diff --git" in result.artifacts["patch"]
        with pytest.raises(KeyError, match="no task 'other'"):
            made.create("other")


def test_infrastructure_fault_has_no_reward(tmp_path: Path) -> None:
    (task,) = tasks(1)
    broken = dataclasses.replace(task.environment, image="rootfs:/nowhere")
    with factory(tmp_path, [dataclasses.replace(task, environment=broken)], agent="oracle") as made:
        session = made.create(task.id)
        session.wait_for_completion()
        assert session.verify([]).env_reward is None
        assert session.verify([]).metrics["outcome"] == "sandbox_error"
        assert session.fetch_training_trace().turns == []


def test_closed_session_is_cancelled(tmp_path: Path) -> None:
    with factory(tmp_path, list(tasks(1)), agent="oracle") as made:
        session = made.create(tasks(1)[0].id)
        session.close()
        session.close()
        assert session.verify([]).env_reward is None
        assert session.fetch_training_trace().turns == []


def test_trace_holds_the_tokens_of_the_engine(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from hone.policy.tiny import make_tiny

    (task,) = tasks(1)
    make_tiny([task.problem] * 20, tmp_path / "model")
    sets = [f"model.path={tmp_path}/model", "agent.turn_limit=2"]
    sampling = {"temperature": 0.7, "top_p": 1.0, "top_k": 0}
    with factory(tmp_path, [task], agent="bash", sets=sets, sampling=sampling) as made:
        session = made.create(task.id, seed=1)
        session.wait_for_completion()
        trace, result = session.fetch_training_trace(), session.verify([])
    assert result.env_reward == -1.0
    assert len(trace.turns) == result.metrics["turns"] > 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for turn in trace.turns:
        ids = torch.tensor([turn.prompt_token_ids + turn.completion_token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(turn.prompt_token_ids) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1).gather(1, ids[0, len(turn.prompt_token_ids) :, None])
        assert (expected[:, 0] - torch.tensor(turn.per_token_logps)).abs().max() <= 1e-4
        assert sum(turn.loss_mask) == len(turn.completion_token_ids)
    worker = pytest.importorskip("trl.experimental.async_grpo.openenv_harness")
    sequences, _ = worker._chain_to_sequences(worker._turns_from_training_trace(trace), "r", 0)
    assert sum(sum(sequence.completion_mask) for sequence in sequences) == sum(
        len(turn.completion_token_ids) for turn in trace.turns
    )


def test_sampling_that_narrows_the_policy_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="top_p"),
        factory(tmp_path, list(tasks(1)), agent="oracle", sampling={"temperature": 1.0, "top_p": 0.9}),
    ):
        pass


def test_factory_closes_with_a_running_rollout(tmp_path: Path) -> None:
    with factory(tmp_path, list(tasks(1)), agent="oracle") as made:
        session = made.create(tasks(1)[0].id)
    assert session.verify([]).env_reward is None
