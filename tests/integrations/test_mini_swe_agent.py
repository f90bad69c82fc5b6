"""Rollouts of the package: exact tokens, ten at once, and every ending."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from minisweagent.agents import default

from hone.agents import ScaffoldError, load_scaffold
from hone.agents.context import ManagedAgent
from hone.agents.settings import BashAgentSettings, ContextSettings
from hone.integrations.mini_swe_agent.agent import MiniSweAgent, make_mini_swe_agent
from hone.launch.runtime import open_agent
from hone.outcomes import Outcome
from hone.policy.chat import Chat
from hone.policy.engine import Completion, ContextOverflow, EngineError, Sampling
from hone.policy.model import make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.sandbox import SandboxLost, SandboxSpec
from hone.tasks.workspace import prepare
from hone.train.samples import tree_samples
from hone.types import Task, Trajectory
from tests.agents.settings import agent_settings
from tests.integrations.package import SHIPPED, GivenReply, call, run_package
from tests.policy.scripted_engine import ScriptedEngine
from tests.rollout.real import gold, open_context, tasks

pytestmark = pytest.mark.sandbox

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SHORT = """
agent: {system_template: "Work.", instance_template: "{{ task }}", step_limit: STEPS}
environment: {timeout: 120}
model:
  observation_template: "{{ output.returncode }} {{ output.output[:2000] }}"
  format_error_template: "{{ error }}"
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(["fix the bug in it and run ls\n"] * 3, TinyModelSettings())


def tool(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


class Policy:
    """Makes a chat for each rollout; its engine returns the replies `says(task)` and then submits."""

    def __init__(self, tokenizer: Any, says: Callable[[], Sequence[str]], *, room: int = 100_000) -> None:
        self.renderer = make_renderer(tokenizer, "qwen3")
        self.stop = self.renderer.get_stop_token_ids()[0]
        self.tokenizer, self.says, self.room = tokenizer, says, room
        self.engines: dict[str, ScriptedEngine] = {}
        self.chats: dict[str, Chat] = {}

    def __call__(self, rollout_id: str, seed: int) -> Chat:
        replies = list(self.says())

        def answer(number: int) -> list[int]:
            text = replies[number] if number < len(replies) else tool(SUBMIT)
            return [*self.tokenizer.encode(text, add_special_tokens=False), self.stop]

        engine = self.engines[rollout_id] = ScriptedEngine(answer, context_tokens=self.room)
        self.chats[rollout_id] = Chat(engine, self.renderer, Sampling(max_tokens=200), session=rollout_id)
        return self.chats[rollout_id]

    def check(self, done: Trajectory) -> None:
        """Assert that the tree holds the engine's prompts and completions, and trains each token once."""
        engine, chat = self.engines[done.rollout_id], self.chats[done.rollout_id]
        assert done.tree is chat.tree
        sampled = [node for node in done.tree.nodes if node.sampled]
        assert len(sampled) == len(engine.prompts) == len(done.turns)
        for node, prompt, completion, turn in zip(
            sampled, engine.prompts, engine.completions, done.turns, strict=True
        ):
            assert node.parent is not None
            assert done.tree.tokens(node.parent).tolist() == prompt
            assert node.tokens.tolist() == completion.token_ids.tolist()
            assert turn.node is not None
            assert done.tree.nodes[turn.node] is node
        samples = tree_samples(done.tree, rollout_id="r", group_id="g", advantage=1.0)
        trained = sum(int((sample.weight > 0).sum()) for sample in samples)
        assert trained == sum(len(completion.token_ids) for completion in engine.completions)


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("mini-swe-agent")]


def roll_out(
    root: Path, agent: Any, new_chat: Any, task: Task, *, count: int = 1, **settings: Any
) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with open_context(root, agent, **settings) as real:
            context = dataclasses.replace(real, new_chat=new_chat)
            workspace = await asyncio.to_thread(prepare, task, context.workspaces)
            done = await asyncio.gather(
                *(run_episode(_episode(task, workspace, number), context) for number in range(count))
            )
            await _all_gone(context)
            return done

    done = asyncio.run(main())
    assert running() == []
    return done


def _episode(task: Task, workspace: Path, number: int) -> Episode:
    return Episode(task=task, rollout_id=f"r{number}", group_id="g", workspace=workspace, seed=number)


async def _all_gone(context: RolloutContext) -> None:
    for sandbox in context.provider.started:  # type: ignore[attr-defined]
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")


def short(tmp_path: Path, *, steps: int = 20, **settings: Any) -> MiniSweAgent:
    path = tmp_path / "short.yaml"
    path.write_text(SHORT.replace("STEPS", str(steps)))
    given = {"kind": "mini-swe-agent", "prompts": str(path), **settings}
    return make_mini_swe_agent(agent_settings(given))


@pytest.mark.full
def test_ten_concurrent_rollouts_resolve_with_exact_tokens(tmp_path: Path, tokenizer: Any) -> None:
    task = tasks(1)[0]
    agent = make_mini_swe_agent(
        BashAgentSettings(kind="mini-swe-agent"), trajectories=tmp_path / "trajectories"
    )
    replies = [
        f"I look.\n{tool('ls')}\n{tool('git log --oneline | cat')}",
        "<think>\nhm\n</think>\n\nJust words.",
        f"<tool_call>\n{{'name'\n</tool_call>\n{tool('ls')}",
        tool(gold(task)),
    ]
    policy = Policy(tokenizer, lambda: replies)
    for done in roll_out(tmp_path, agent, policy, task, count=10):
        assert (done.outcome, done.reward, done.error) == (Outcome.RESOLVED, 1.0, None)
        assert [turn.action for turn in done.turns[1:3]] == [None, None]
        assert "Expecting property name" in done.turns[2].observation
        assert [message["role"] for message in done.messages[2:7]] == [
            "assistant",
            "tool",
            "tool",
            "user",
            "user",
        ]
        policy.check(done)
        assert done.notes["mini_swe_agent"]["exit_status"] == "Submitted"
    assert len(list((tmp_path / "trajectories").iterdir())) == 10


def test_trajectory_file_has_the_format_of_the_package(tmp_path: Path, tokenizer: Any) -> None:
    agent = make_mini_swe_agent(
        BashAgentSettings(kind="mini-swe-agent"), trajectories=tmp_path / "trajectories"
    )
    policy = Policy(tokenizer, lambda: [tool("echo a")])
    done = roll_out(tmp_path, agent, policy, tasks(1)[0])[0]
    note = done.notes["mini_swe_agent"]
    assert note["trajectory"].startswith("r0__")
    data = json.loads((tmp_path / "trajectories" / note["trajectory"]).read_text())
    facts = {key: data["info"][key] for key in ("mini_version", "exit_status", "model_stats")}
    assert note == {**facts, "trajectory": note["trajectory"]}
    replies, end = [GivenReply(calls=(call("echo a"),))], GivenReply(calls=(call(SUBMIT),))
    own = run_package(SHIPPED["swebench"], replies, tools=True, end=end).data
    assert data["instance_id"] == done.task_id
    assert set(data) == {*own, "instance_id"}
    assert data["trajectory_format"] == own["trajectory_format"] == "mini-swe-agent-1.1"
    assert set(data["info"]) == set(own["info"])
    assert set(data["info"]["config"]) == set(own["info"]["config"])
    assert data["info"]["model_stats"] == own["info"]["model_stats"] == {"instance_cost": 0.0, "api_calls": 2}
    assert data["info"]["exit_status"] == own["info"]["exit_status"] == "Submitted"
    assert [m["role"] for m in data["messages"]] == [m["role"] for m in own["messages"]]
    for mine, theirs in zip(data["messages"], own["messages"], strict=True):
        assert set(mine.get("extra", {})) == set(theirs.get("extra", {}))


def test_limits_map_to_outcomes(tmp_path: Path, tokenizer: Any) -> None:
    task, forever = tasks(1)[0], [tool("true")] * 30

    def ends(says: Sequence[str], **settings: Any) -> tuple[Outcome, int]:
        policy = Policy(tokenizer, lambda: says)
        done = roll_out(tmp_path, short(tmp_path, **settings), policy, task)[0]
        policy.check(done)
        return done.outcome, len(done.turns)

    assert ends(forever, steps=4) == (Outcome.TURN_LIMIT, 4)
    assert ends(forever, turn_limit=2) == (Outcome.TURN_LIMIT, 2)
    sampled = len(tokenizer.encode(forever[0], add_special_tokens=False)) + 1
    assert ends(forever, token_limit=3 * sampled - 1) == (Outcome.TOKEN_LIMIT, 3)
    assert ends(["words"] * 9) == (Outcome.FORMAT_LIMIT, 3)


def test_time_limit_ends_the_rollout(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(tokenizer, lambda: [tool("true")] * 30)

    def seconds() -> float:  # 100 for each reply
        return 100.0 * sum(len(engine.prompts) for engine in policy.engines.values())

    monkeypatch.setattr(default, "time", SimpleNamespace(time=seconds))
    done = roll_out(tmp_path, short(tmp_path, time_limit_s=250), policy, tasks(1)[0])[0]
    assert (done.outcome, len(done.turns)) == (Outcome.TIME_LIMIT, 3)


def test_context_policy_applies_to_the_package(tmp_path: Path, tokenizer: Any) -> None:
    agent = ManagedAgent(short(tmp_path), ContextSettings(policy="head_tail"))
    policy = Policy(tokenizer, lambda: [tool(f"echo {n}; seq 1 60") for n in range(12)], room=1500)
    done = roll_out(tmp_path, agent, policy, tasks(1)[0])[0]
    assert done.outcome is Outcome.NO_PATCH
    assert len(done.turns) == 13
    assert all(len(prompt) <= 1300 for prompt in policy.engines["r0"].prompts)
    assert len(list(done.tree.branches())) > 3
    policy.check(done)


class Fails(Policy):
    """Raises or awaits `ending` as the second reply."""

    def __init__(self, tokenizer: Any, ending: Exception | Callable[[], Awaitable[Any]]) -> None:
        super().__init__(tokenizer, lambda: [tool("echo a")])
        self.ending = ending

    def __call__(self, rollout_id: str, seed: int) -> Chat:
        chat = super().__call__(rollout_id, seed)
        engine, generate = self.engines[rollout_id], self.engines[rollout_id].generate

        async def failing(*arguments: Any, **more: Any) -> Completion:
            if not engine.prompts:
                return await generate(*arguments, **more)
            if isinstance(self.ending, Exception):
                raise self.ending
            return await self.ending()

        engine.generate = failing  # type: ignore[method-assign]
        return chat


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (EngineError("down"), Outcome.ENGINE_ERROR),
        (ContextOverflow(9, 8), Outcome.CONTEXT_LIMIT),
    ],
)
def test_failing_engine_ends_the_rollout_and_keeps_turns(
    tmp_path: Path, tokenizer: Any, ending: Any, outcome: Outcome
) -> None:
    done = roll_out(tmp_path, short(tmp_path), Fails(tokenizer, ending), tasks(1)[0])[0]
    assert (done.outcome, len(done.turns)) == (outcome, 1)
    assert [message["role"] for message in done.messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.full
def test_deadline_and_lost_sandbox_end_the_rollout(tmp_path: Path, tokenizer: Any) -> None:
    task, agent = tasks(1)[0], short(tmp_path, command_timeout_s=600)
    done = roll_out(tmp_path, agent, Policy(tokenizer, lambda: [tool("sleep 1000")]), task, time_limit_s=5.0)
    assert (done[0].outcome, len(done[0].turns)) == (Outcome.TIME_LIMIT, 0)

    class Closes:
        """An agent whose sandbox is lost before its first command."""

        async def run(self, task: Any, sandbox: Any, chat: Any, run: Any) -> None:
            sandbox.used = True
            await sandbox.inner.close()
            await agent.run(task, sandbox, chat, run)

    done = roll_out(tmp_path, Closes(), Policy(tokenizer, lambda: [tool("ls")]), task)
    assert done[0].outcome is Outcome.BROKE_SANDBOX


def test_cancelled_rollout_leaves_no_thread(tmp_path: Path, tokenizer: Any) -> None:
    reached = asyncio.Event()

    async def never() -> Any:
        reached.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = tasks(1)[0]
        async with open_context(tmp_path, short(tmp_path)) as real:
            context = dataclasses.replace(real, new_chat=Fails(tokenizer, never))
            episode = _episode(task, prepare(task, context.workspaces), 0)
            job = asyncio.create_task(run_episode(episode, context))
            async with asyncio.timeout(60):
                await reached.wait()
            assert len(running()) == 1
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert running() == []
            assert len(episode.run.turns) == 1
            await _all_gone(context)

    asyncio.run(main())


def test_prompts_are_named_or_given_by_path(tmp_path: Path) -> None:
    with pytest.raises(
        ScaffoldError, match="no prompts named 'tiny': use one of default, mini, mini_textbased"
    ):
        make_mini_swe_agent(BashAgentSettings(kind="mini-swe-agent", prompts="tiny"))
    make_mini_swe_agent(BashAgentSettings(kind="mini-swe-agent", prompts="mini_textbased"))
    with pytest.raises(ScaffoldError, match=r'use agent.kind = "bash" for prompts of version 1'):
        MiniSweAgent(load_scaffold("default"))
    path = tmp_path / "prompts.yaml"
    path.write_text(SHORT.replace("STEPS", "3").replace("{{ task }}", "{{ instance }}"))
    with pytest.raises(ScaffoldError, match="'instance' is undefined"):
        make_mini_swe_agent(BashAgentSettings(kind="mini-swe-agent", prompts=str(path)))

    async def main() -> None:
        settings = BashAgentSettings(kind="mini-swe-agent", context=ContextSettings(policy="drop_thinking"))
        async with open_agent(settings, SandboxSpec(), cache=tmp_path) as (agent, _):
            assert isinstance(agent, ManagedAgent)
            assert isinstance(agent.agent, MiniSweAgent)

    asyncio.run(main())
