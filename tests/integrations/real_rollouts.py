"""Real rollouts of every kind of agent: real sandboxes, gateway and grading, scripted engines."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

from hone.agents import BashAgent, load_scaffold
from hone.agents.context import ManagedAgent
from hone.agents.settings import ContextSettings, DebuggerAgentSettings
from hone.launch.runtime import open_agent
from hone.policy.chat import Chat
from hone.policy.engine import Sampling
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.sandbox import SandboxSpec
from hone.tasks.workspace import prepare
from hone.types import Sampler, Task, Trajectory
from tests.agents.blackbox.test_agent import TOML
from tests.agents.blackbox.world import ScriptedEngine, call, load_program, open_world, renderer, script
from tests.grading.example import make_task
from tests.rollout.real import open_context

CLIENT = Path(__file__).with_name("title_client.py")
LOOK = "cat stats.py"
FIX = "sed -i 's/a - b/a + b/' stats.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
KINDS = ("black-box", "debugger", "forked", "faulty", "crashed", "bash")


def _block(command: str) -> str:
    return f"I run it.\n```bash\n{command}\n```"


def roll_out(kind: str, root: Path) -> Trajectory:
    """Return a rollout of one of KINDS; its files are below `root`."""
    root.mkdir(parents=True)
    return asyncio.run(_RUNS[kind](root))


async def _bash(root: Path) -> Trajectory:
    replies = ("Just words.", _block(LOOK), _block(FIX), _block(SUBMIT))
    agent = BashAgent(load_scaffold("default"))
    async with open_context(root, agent) as context:
        return await _attempt(root, context, ScriptedEngine(script(*replies)), "bash")


async def _forked(root: Path) -> Trajectory:
    """A long conversation in a short context: the context policy rewrites it at almost every turn."""
    commands = [_block(f"echo {number}; seq 1 60") for number in range(8)]
    engine = ScriptedEngine(script(*commands, _block(FIX), _block(SUBMIT)), context_tokens=3000)
    agent = ManagedAgent(BashAgent(load_scaffold("default")), ContextSettings(policy="head_tail"))
    async with open_context(root, agent) as context:
        return await _attempt(root, context, engine, "bash")


async def _crashed(root: Path) -> Trajectory:
    """The engine is down after the second reply."""
    engine = ScriptedEngine(script(_block(LOOK)), fails_at=2)
    async with open_context(root, BashAgent(load_scaffold("default"))) as context:
        return await _attempt(root, context, engine, "bash")


async def _faulty(root: Path) -> Trajectory:
    """No sandbox starts."""
    agent = BashAgent(load_scaffold("default"))
    async with open_context(root, agent, fails=lambda start: True) as context:
        return await _attempt(root, context, ScriptedEngine(script(_block(LOOK))), "bash")


async def _debugger(root: Path) -> Trajectory:
    fixed = {"path": "stats.py", "start": 2, "end": 2, "new_code": "    return a + b"}
    replies = (
        "I look.\n" + call("pdb", command="start", runner="pytest", file="tests/test_visible.py"),
        call("pdb", command="b stats.py:2"),
        "I cannot call a tool now.",
        call("rewrite", **fixed),
        call("submit"),
    )
    async with (
        open_agent(DebuggerAgentSettings(), SandboxSpec(), cache=root) as (agent, spec),
        open_context(root, agent) as context,
    ):
        context = dataclasses.replace(context, spec=spec)
        return await _attempt(root, context, ScriptedEngine(script(*replies)), "debugger")


async def _black_box(root: Path) -> Trajectory:
    """The client asks for a title after its first turn, and rewrites its history after the second."""
    (root / "tools").mkdir()
    shutil.copy(CLIENT, root / "tools")
    path = root / "client.toml"
    command = '["python3", "{{ layer }}/app/title_client.py", "works", "{{ prompt }}"]'
    path.write_text(TOML.format(command=command, start_timeout_s=60.0, more=""))
    replies = ("Let me look. " + call("bash", command=LOOK), "A wrong sum", call("bash", command=FIX))
    engine = ScriptedEngine(script(*replies, "Done."))
    program = load_program(str(path))
    async with open_world(root, program, engine, layers=root / "layers") as world:
        world.context = dataclasses.replace(world.context, sampler=_sampler("blackbox"))
        return await world.attempt(make_task(), "black-box")


async def _attempt(root: Path, context: RolloutContext, engine: Any, agent: str) -> Trajectory:
    task: Task = make_task()

    def new_chat(rollout_id: str, seed: int) -> Chat:
        return Chat(engine, renderer(), Sampling(max_tokens=512), session=rollout_id)

    context = dataclasses.replace(context, new_chat=new_chat, sampler=_sampler(agent))
    workspace = await asyncio.to_thread(prepare, task, context.workspaces)
    episode = Episode(task=task, rollout_id=root.name, group_id="g", workspace=workspace, seed=1)
    return await run_episode(episode, context)


def _sampler(agent: str) -> Sampler:
    return Sampler(
        agent=agent, engine="vllm", sampling={"temperature": 1.0, "max_tokens": 512}, trainable=True
    )


_RUNS = {
    "black-box": _black_box,
    "debugger": _debugger,
    "forked": _forked,
    "faulty": _faulty,
    "crashed": _crashed,
    "bash": _bash,
}
