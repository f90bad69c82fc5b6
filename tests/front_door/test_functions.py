"""The functions of `import hone` on real tasks and sandboxes, called as scripts and notebooks call them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import hone
from hone.agents import AgentRun
from hone.agents.contract import Limits, Step, run_loop
from hone.config import ConfigError, resolve
from hone.evaluate.errors import EvaluateError
from hone.policy.reply import Chat, Reply
from hone.sandbox import Sandbox
from hone.tasks.errors import TaskError
from hone.tasks.formats import save
from hone.types import Task
from hone.utils.errors import UsageError
from hone.utils.extras import MissingExtra, extras_of
from tests.cli.endpoint import endpoint
from tests.cli.fake_run import make_run
from tests.rollout.real import gold, tasks

CARD = {"id": "big-model", "object": "model", "owned_by": "unknown"}


def test_tasks_are_generated_read_and_selected(tmp_path: Path):
    made = hone.load_tasks("curriculum", train=3, test=2, unseen=0)
    assert [len(made), len(hone.load_tasks("curriculum", split="test", train=3, test=2, unseen=0))] == [5, 2]
    save(made, tmp_path / "tasks.jsonl")
    assert hone.load_tasks(tmp_path / "tasks.jsonl") == made
    assert hone.load_tasks(tmp_path / "tasks.jsonl", select={"limit": 2}) == made[:2]
    with pytest.raises(ConfigError, match=r"load_tasks.*tasks\.trian.*tasks\.train"):
        hone.load_tasks("curriculum", trian=3)
    with pytest.raises(TaskError, match=r"nothing\.jsonl"):
        hone.load_tasks(tmp_path / "nothing.jsonl")


@pytest.mark.sandbox
def test_task_is_worked_on_graded_and_evaluated_inside_a_running_loop(tmp_path: Path):
    first, second = tasks(2)

    async def notebook() -> None:
        with hone.sandbox(task=first) as box:
            assert box.exec(gold(first)).exit_code == 0
            assert box.exec("exit 3").exit_code == 3
            box.write("notes.txt", "text")
            assert box.read("notes.txt") == b"text"
            patch = box.patch()
        assert hone.grade(first, patch).resolved
        rollout = hone.run(first, "oracle", progress=False)
        assert (rollout.outcome, rollout.reward) == ("resolved", 1.0)
        result = hone.evaluate([first, second], "noop", out=tmp_path / "out", progress=False)
        assert (result.resolve_rate, result.n, result.errors) == (0.0, 2, 0)

    asyncio.run(notebook())
    again = hone.evaluate([first, second], "noop", out=tmp_path / "out", progress=False)
    assert again.n == 2
    table = hone.read_run(again.out).rollouts
    assert set(table.column("outcome").to_pylist()) == {"no_patch"}
    with pytest.raises(EvaluateError, match="holds another evaluation"):
        hone.evaluate([second], "noop", out=tmp_path / "out", progress=False)


@pytest.mark.sandbox
def test_sandbox_is_asynchronous_in_async_with():
    async def work() -> bytes:
        async with hone.sandbox(settings={"sandbox.memory_mib": 64}) as box:
            return (await box.exec("echo hello")).stdout

    assert asyncio.run(work()) == b"hello\n"


class Asks:
    """Runs the first reply as a command."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        run.messages.append({"role": "user", "content": task.problem})

        async def act(reply: Reply) -> Step:
            run.messages.append(reply.to_message())
            await sandbox.exec(reply.content)
            return Step(action=reply.content, submitted=True)

        await run_loop(chat, run, Limits(turns=1), act)


@pytest.mark.sandbox
def test_agent_of_the_caller_talks_to_an_endpoint():
    task = tasks(1)[0]

    def fix(messages: list[dict[str, Any]]) -> str:
        return gold(task)

    with endpoint(fix, CARD) as served, hone.open_rollouts(Asks(), engine=served.url, progress=False) as run:
        ((one, two),) = run.run([task], samples=2)
        assert [one.outcome, two.outcome] == ["resolved", "resolved"]
        assert (one.sampler.agent, one.sampler.engine, one.turns[0].reply) == ("Asks", "openai", gold(task))
        assert one.rollout_id != two.rollout_id
        with pytest.raises(UsageError, match="no model is at hand"):
            _ = run.model


def test_unusable_arguments_are_refused_before_any_sandbox(tmp_path: Path):
    with pytest.raises(EvaluateError, match="holds no task"):
        hone.evaluate([], "noop", out=tmp_path / "out")
    task = tasks(1)[0]
    with pytest.raises(UsageError, match=r"engine nowhere is neither `local` nor an address"):
        hone.run(task, engine="nowhere")
    sizes = {"hidden_size": 8192, "intermediate_size": 32768, "num_hidden_layers": 200, "vocab_size": 400}
    model = {"model_type": "qwen3", "num_attention_heads": 64, **sizes}  # 200 billion parameters
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(ConfigError, match="GiB"):
        hone.evaluate([task], model=tmp_path, engine="local", out=tmp_path / "out", progress=False)


def test_run_is_read_into_tables(tmp_path: Path):
    run = hone.read_run(make_run(tmp_path / "run"))
    rows = {row["rollout_id"]: row for row in run.rollouts.to_pylist()}
    assert len(rows) == 7
    assert (rows["r10"]["step"], rows["r10"]["resolved"], rows["r10"]["disposition"]) == (1, True, "trained")
    assert (rows["flat"]["reason"], rows["r20"]["outcome"], rows["r20"]["resolved"]) == (
        "no_tokens",
        None,
        None,
    )
    assert run.steps.column("resolve_rate").to_pylist() == [0.5, 1.0]
    assert run.validations.num_rows == 0
    assert run.rollout(rows["r00"]["directory"]).rollout_id == "r00"
    with pytest.raises(UsageError, match="holds no run: pass the directory of a training"):
        hone.read_run(tmp_path)


def test_training_refuses_before_anything_starts(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"train\.stepz"):
        hone.train("quickstart", {"train.stepz": 1})
    other = tmp_path / "run"
    other.mkdir()
    (other / "config.toml").write_text('run_dir = "run"\nseed = 7\n')
    with pytest.raises(ConfigError, match="belongs to another recipe"):
        hone.train("quickstart", {"run_dir": other}, progress=False)
    with pytest.raises(UsageError, match=r"pass train\.steps to hone\.config\.resolve"):
        hone.train(resolve(None, [f"run_dir={other}"]), {"train.steps": 1}, progress=False)
    with pytest.raises(UsageError, match="needs tasks and out"):
        hone.evaluate("tasks.jsonl", "noop")


def test_missing_extra_is_named():
    with (
        pytest.raises(MissingExtra, match=r"hone\.train needs torch: pip install 'hone-rl\[train\]'"),
        extras_of("hone.train"),
    ):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with pytest.raises(ModuleNotFoundError, match="other"), extras_of("hone.train"):
        raise ModuleNotFoundError("No module named 'other'", name="other")
