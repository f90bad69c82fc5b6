"""The debugger agent: its messages, its limits, and rollouts from a task to a verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.agents import AgentRun, DebuggerAgent, make_agent
from hone.agents.contract import Limits
from hone.agents.debugger.client import MOUNTS, open_client, open_listener
from hone.agents.debugger.pdb import Pdb
from hone.agents.settings import BashAgentSettings, DebuggerAgentSettings
from hone.launch.runtime import open_agent
from hone.outcomes import Outcome
from hone.policy.chat import Chat
from hone.policy.engine import Sampling
from hone.policy.model import make_renderer
from hone.policy.reply import Reply, ToolSpec
from hone.policy.tiny import make_tokenizer
from hone.rollout.episode import Episode, run_episode
from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.contract import ProviderUnavailable, Sandbox
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Message, TokenTree
from tests.grading.example import make_task
from tests.policy.conftest import SETTINGS, TEXTS
from tests.policy.scripted_engine import ScriptedEngine
from tests.rollout.real import open_context, tasks
from tests.sandbox.node.served import NodeProvider, served
from tests.waiting import wait_until_async

pytestmark = pytest.mark.sandbox

Call = tuple[str, dict[str, Any]]
SUBMIT: Call = ("submit", {})


def native(*calls: Call, **more: Any) -> Reply:
    made = tuple(
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    )
    return Reply(content="", node=None, tool_calls=made, sampled_tokens=10, **more)


def text(name: str, arguments: dict[str, Any]) -> Reply:
    call = json.dumps({"name": name, "arguments": arguments})
    return Reply(content=f"<tool_call>\n{call}\n</tool_call>", node=None, sampled_tokens=10)


class Replies:
    """A chat that gives the replies it was made with, and then submits."""

    def __init__(self, *replies: Reply) -> None:
        self.tree, self.replies = TokenTree(), list(replies)
        self.tools: list[Sequence[ToolSpec] | None] = []
        self.max_prompt_tokens = sys.maxsize

    def measure(self, messages: Sequence[Message], **options: object) -> int:
        return 0

    async def reply(
        self, messages: list[Message], *, tools: Sequence[ToolSpec] | None = None, **options: object
    ) -> Reply:
        self.tools.append(tools)
        return self.replies.pop(0) if self.replies else native(SUBMIT)


def work(chat: Replies, **settings: Any) -> AgentRun:
    """One run in a sandbox with one file."""

    async def main() -> AgentRun:
        agent, run = DebuggerAgent(DebuggerAgentSettings(**settings)), AgentRun()
        async with (
            make_provider(SandboxSettings()) as provider,
            agent.open(SandboxSpec()) as spec,
            await provider.start(spec) as sandbox,
        ):
            await sandbox.write("app.py", b"x = 1\n")
            await agent.run(make_task(), sandbox, chat, run)
        return run

    return asyncio.run(main())


def test_each_call_is_answered_by_its_id():
    chat = Replies(native(("view", {"path": "app.py"})), native(("eval", {}), ("grep", {"pattern": "x"})))
    run = work(chat)
    assert [message["role"] for message in run.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert make_task().problem in run.messages[1]["content"]
    assert "/testbed\n|-- app.py" in run.messages[0]["content"]
    assert run.messages[2]["tool_calls"] == list(native(("view", {"path": "app.py"})).tool_calls)
    assert run.messages[3]["tool_call_id"] == "c0"
    assert run.messages[3]["content"].startswith("Viewing `app.py`, lines 1-1 of 1 total lines.")
    assert run.messages[5] == {
        "role": "tool",
        "tool_call_id": "c0",
        "content": "Only one tool is called in each reply: this call was not made.",
    }
    assert run.messages[6]["content"].startswith("Found 1 matches:")
    assert [turn.action for turn in run.turns] == [
        '{"name": "view", "arguments": {"path": "app.py"}}',
        '{"name": "grep", "arguments": {"pattern": "x"}}',
        '{"name": "submit", "arguments": {}}',
    ]
    assert [turn.exit_code for turn in run.turns] == [0, 0, 0]
    assert (run.submitted, run.ending) == (True, None)
    assert [tool["name"] for tool in chat.tools[0] or ()][:2] == ["pdb", "view"]


def test_prompt_describes_text_calls():
    chat = Replies(text("view", {"path": "app.py"}), text(*SUBMIT))
    run = work(chat, tool_calls="text")
    assert chat.tools == [None, None]
    assert '{"name": "pdb", "description": ' in run.messages[0]["content"]
    assert [message["role"] for message in run.messages[2:]] == ["assistant", "user", "assistant"]
    assert run.submitted


def test_ablation_does_not_mention_pdb():
    chat = Replies(native(("pdb", {"command": "n"})))
    run = work(chat, pdb=False)
    assert "pdb" not in json.dumps(chat.tools[0])
    assert "pdb" not in run.messages[0]["content"]
    assert "debugger" not in run.messages[0]["content"]
    assert run.messages[3]["content"].startswith("Unregistered tool: pdb. ")
    run = work(Replies(), tool_calls="text", pdb=False)
    assert "pdb" not in run.messages[0]["content"]
    assert "pdb tool" in work(Replies()).messages[0]["content"]


def test_repeated_format_errors_end_the_rollout():
    wrong = [
        Reply(content="I think.", node=None),
        native(("bash", {"command": "ls"})),
        native(("view", {"file": "a"})),
    ]
    run = work(Replies(*wrong))
    assert run.ending is Outcome.FORMAT_LIMIT
    assert not run.submitted
    assert [turn.action for turn in run.turns] == [None] * 3
    assert [turn.observation.split(":")[0] for turn in run.turns] == [
        "Empty tool name in action",
        "Unregistered tool",
        "Invalid arguments for tool view",
    ]
    assert [message["role"] for message in run.messages[2:]] == [
        "assistant", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    run = work(Replies(wrong[0], wrong[1], native(("listdir", {})), wrong[2], wrong[0]))
    assert run.submitted


def test_limits_end_the_rollout():
    run = work(Replies(*[native(("listdir", {}))] * 9), token_limit=25)
    assert (run.ending, len(run.turns)) == (Outcome.TOKEN_LIMIT, 3)


def test_settings_set_the_limits():
    agent = make_agent(DebuggerAgentSettings(kind="debugger"))
    assert isinstance(agent, DebuggerAgent)
    assert (agent.limits, agent.command_timeout_s) == (Limits(turns=80), 30.0)
    agent = make_agent(DebuggerAgentSettings(pdb=False, turn_limit=0, token_limit=7, command_timeout_s=5.0))
    assert isinstance(agent, DebuggerAgent)
    assert (agent.limits, agent.command_timeout_s) == (Limits(tokens=7), 5.0)
    assert agent.tools[0]["name"] == "view"
    with pytest.raises(ValueError, match="tool_calls"):
        BashAgentSettings.model_validate({"tool_calls": "text"})


def test_cancelled_run_leaves_no_process():
    class Waiting(Replies):
        async def reply(self, messages: list[Message], **options: Any) -> Reply:
            if not self.replies:
                waiting.set()
                await asyncio.Event().wait()
            return await super().reply(messages, **options)

    waiting = asyncio.Event()
    starts = native(("pdb", {"command": "start", "runner": "python", "file": "app.py"}))

    async def main() -> None:
        agent = DebuggerAgent(DebuggerAgentSettings())
        async with (
            make_provider(SandboxSettings()) as provider,
            agent.open(SandboxSpec()) as spec,
            await provider.start(spec) as sandbox,
        ):
            await sandbox.write("app.py", b"x = 1\n")
            running = asyncio.create_task(agent.run(make_task(), sandbox, Waiting(starts), AgentRun()))
            await waiting.wait()
            look = ["bash", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
            assert "hone_debuggee.py" in (await sandbox.exec(look)).text
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

            async def is_gone() -> bool:
                return "hone_debug" not in (await sandbox.exec(look)).text

            await wait_until_async(is_gone)

    asyncio.run(main())


def test_image_without_python_is_an_infrastructure_fault():
    async def main(sandbox: Sandbox, agent: DebuggerAgent) -> None:
        await agent.run(make_task(), sandbox, Replies(), AgentRun())

    async def without_python() -> None:
        agent = DebuggerAgent(DebuggerAgentSettings())
        async with make_provider(SandboxSettings()) as provider, agent.open(SandboxSpec()) as spec:
            broken = dataclasses.replace(spec, env={"PATH": "/nowhere:/bin"}, mounts=())
            async with await provider.start(broken) as sandbox:
                with pytest.raises(ProviderUnavailable, match="the debugger cannot be started"):
                    await main(sandbox, agent)

    asyncio.run(without_python())


class Policy:
    """A scripted engine that speaks the Qwen3 format: given calls, token by token."""

    def __init__(self, calls: list[Call]) -> None:
        texts = [
            "I will.\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
            for name, arguments in calls
        ]
        tokenizer = make_tokenizer([*TEXTS, *texts], SETTINGS)
        self.renderer = make_renderer(tokenizer, "qwen3")
        stop = self.renderer.get_stop_token_ids()[0]
        self.ids = [[*tokenizer.encode(each, add_special_tokens=False), stop] for each in texts]
        self.engine = ScriptedEngine(lambda call: self.ids[call])

    def new_chat(self, rollout_id: str, seed: int) -> Chat:
        return Chat(self.engine, self.renderer, Sampling(max_tokens=4096), session=rollout_id)


def _fix(task: Any) -> tuple[str, int, str]:
    """The file, the line and the text of the gold patch of a task whose fix replaces one line."""
    lines = task.checks.gold_patch.splitlines()
    path = next(line for line in lines if line.startswith("+++ b/"))[6:]
    at = int(next(line for line in lines if line.startswith("@@"))[4:].split(",")[0].split(" ")[0])
    for line in lines[lines.index(f"+++ b/{path}") + 2 :]:
        if line.startswith("-"):
            break
        at += 1
    return path, at, next(line for line in lines if line.startswith("+") and not line.startswith("+++"))[1:]


@pytest.mark.parametrize("pdb", [True, False])
def test_task_is_resolved_with_exact_tokens(tmp_path: Path, pdb: bool):
    replaces = [t for t in tasks(8) if t.checks.gold_patch.count("\n-") == 2]  # with the header's own
    task = replaces[0]
    path, line, fixed = _fix(task)
    debugging: list[Call] = [
        ("pdb", {"command": "start", "runner": "pytest", "file": f"tests/test_{path}"}),
        ("pdb", {"command": f"b {path}:{line}"}),
        ("pdb", {"command": "c"}),
    ]
    calls: list[Call] = [
        *(debugging if pdb else [("view", {"path": path})]),
        ("rewrite", {"path": path, "start": line, "end": line, "new_code": fixed}),
        ("eval", {}),
        SUBMIT,
    ]
    policy = Policy(calls)

    async def main() -> Any:
        settings = DebuggerAgentSettings(pdb=pdb)
        async with (
            open_agent(settings, SandboxSpec(), cache=tmp_path) as (agent, spec),
            open_context(tmp_path, agent) as context,
        ):
            context = dataclasses.replace(context, spec=spec, new_chat=policy.new_chat)
            workspace = prepare(task, context.workspaces)
            episode = Episode(task=task, rollout_id="r", group_id="g", workspace=workspace, seed=1)
            return await run_episode(episode, context)

    done = asyncio.run(main())
    assert (done.outcome, done.reward, done.error) == (Outcome.RESOLVED, 1.0, None)
    assert [json.loads(turn.action or "{}")["name"] for turn in done.turns] == [name for name, _ in calls]
    assert [turn.exit_code for turn in done.turns] == [0] * len(calls)
    if pdb:
        assert done.turns[0].observation.startswith("PDB session started with: python -m pdb -m pytest -sq ")
        assert f"\nCurrent frame:\n{path}({line})" in done.turns[2].observation
    assert "pytest ended with exit code 0" in done.turns[-2].observation
    sampled = [node for node in done.tree.nodes if node.sampled]
    assert [list(node.tokens) for node in sampled] == policy.ids
    for turn, prompt, ids in zip(done.turns, policy.engine.prompts, policy.ids, strict=True):
        assert list(done.tree.tokens(turn.node)) == prompt + ids
    assert len(list(done.tree.branches())) == 1  # nothing was rewritten
    assert np.all(done.tree.nodes[done.turns[0].node].logprobs == policy.engine.completions[0].logprobs)


@pytest.mark.full
def test_debugger_works_through_a_node_server(tmp_path: Path):
    async def main() -> str:
        async with (
            served(make_provider(SandboxSettings(state_dir=tmp_path / "own")), tmp_path / "node") as url,
            NodeProvider(url) as provider,
            open_listener() as listener,
            await provider.start(SandboxSpec(tunnel=listener.path, mounts=MOUNTS)) as sandbox,
        ):
            await sandbox.write("app.py", b"x = 1\ny = 2\n")
            async with open_client(sandbox, listener) as client:
                pdb = Pdb(client, "/testbed", 30.0)
                await pdb.use("start", "python", "app.py")
                return (await pdb.use("n", None, None))[0]

    assert "Current frame:\napp.py(2)<module>()" in asyncio.run(main())
