"""qwen-code as it is published, in sandboxes without a network, asking a scripted engine."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hone.agents.contract import AgentRun
from hone.outcomes import Outcome
from hone.policy.gateway import SessionLimits
from hone.policy.model import load_model
from hone.policy.reply import Purpose
from hone.policy.tiny import make_tiny
from hone.tasks.workspace import prepare as prepare_workspace
from hone.train.samples import tree_samples
from hone.train.settings import TrainSettings
from hone.train.trainer import policy_trainer
from hone.types import Task, Trajectory
from tests.agents.blackbox.broken_line import broken_line
from tests.agents.blackbox.exactness import assert_exact
from tests.agents.blackbox.world import (
    MODEL,
    ScriptedEngine,
    call,
    open_world,
    qwen_code,
    script,
    texts,
)
from tests.grading.example import FIXED, make_task
from tests.services.image import base_archive

pytestmark = [pytest.mark.sandbox, pytest.mark.blackbox]

FILE = "/testbed/stats.py"
READ = "Let me look. " + call("read_file", file_path=FILE)
EDIT = call("edit", file_path=FILE, old_string="return a - b", new_string="return a + b")
DIFF = call("run_shell_command", command="git diff", is_background=False)
GOOD = script(READ, EDIT + "\n" + DIFF, "It is fixed: `add` adds.")
# the same program with a short system prompt and three tools, so that tests take seconds
UNUSED = (
    "agent,skill,tool_search,tool_call,notebook_edit,list_agents,get_goal,update_goal,glob,grep_search,cron_create,"
    "cron_delete,cron_list,enter_worktree,exit_worktree,loop_wakeup,monitor,read_mcp_resource,record_artifact,"
    "report_findings,send_message,task_stop,web_fetch,zoom_image,write_file"
)
SHORT = ("--system-prompt", "You fix bugs.", "--exclude-tools", UNUSED)


def test_it_mends_the_bug_as_published_and_every_token_is_the_engines(tmp_path: Path) -> None:
    engine = ScriptedEngine(GOOD)

    async def scenario() -> Trajectory:
        async with open_world(tmp_path, qwen_code(), engine) as world:
            return await world.attempt(make_task())

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert trajectory.patch.count("diff --git") == 1  # no folder of its own, no cache
    assert_exact(trajectory, engine)
    look, mend, end = (turn.action for turn in trajectory.turns)
    assert look == 'read_file {"file_path": "/testbed/stats.py"}'
    assert mend is not None
    assert mend.startswith("edit {") and mend.endswith("\nrun_shell_command: git diff")
    assert end is None
    assert "return a - b" in trajectory.turns[0].observation
    assert "+    return a + b" in trajectory.turns[1].observation
    report = trajectory.metadata["program"]
    assert (report["exit_code"], report["exchanges"], report["retries"]) == (0, {"main": 3}, 0)


def test_a_dropped_connection_is_asked_again_and_sampled_once(tmp_path: Path) -> None:
    engine = ScriptedEngine(GOOD)
    seen = 0

    def cut(back: bytes) -> bool:
        """Breaks the second reply off where its tool calls have begun."""
        nonlocal seen
        if b"tool_calls" in back and b"edit" in back and seen < 1:
            seen += 1
            return True
        return False

    async def scenario() -> Trajectory:
        async with open_world(tmp_path, qwen_code(*SHORT), engine) as world:
            tunnel = world.parts.spec.tunnel
            assert tunnel is not None
            async with broken_line(tunnel.parent / "line", tunnel, cut) as cuts:
                world.parts = replace(
                    world.parts, spec=replace(world.parts.spec, tunnel=tunnel.parent / "line")
                )
                trajectory = await world.attempt(make_task())
                assert len(cuts) == 1
                return trajectory

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert trajectory.metadata["program"]["retries"] >= 1
    assert trajectory.metadata["program"]["exchanges"] == {"main": 3}
    assert_exact(trajectory, engine)


def big_task() -> Task:
    """The example with a file that fills half of the context."""
    task = make_task()
    start, last = task.environment.history
    numbers = "".join(f"{number}\n" for number in range(10_000, 12_800))
    last = replace(last, files={**last.files, "numbers.txt": numbers})
    return replace(task, environment=replace(task.environment, history=(start, last)))


def test_a_compaction_forks_the_tree_and_the_rollout_is_trained(tmp_path: Path) -> None:
    snapshot = "<analysis>Much was read.</analysis>\n<state_snapshot>Mend add in stats.py.</state_snapshot>"
    count = call("read_file", file_path="/testbed/numbers.txt")
    engine = ScriptedEngine(script(count, READ, snapshot, READ, EDIT, "Fixed."), context_tokens=40_000)

    async def scenario() -> Trajectory:
        async with open_world(tmp_path, qwen_code(*SHORT), engine) as world:
            return await world.attempt(big_task())

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert_exact(trajectory, engine)
    assert [call["purpose"] for call in trajectory.metadata["calls"]] == [
        *(Purpose.MAIN, Purpose.MAIN, Purpose.SIDE, Purpose.MAIN, Purpose.MAIN, Purpose.MAIN)
    ]
    assert trajectory.metadata["forks"]["rewritten"] >= 1
    assert len(trajectory.turns) == 5
    before, after = (engine.asked["r0"][i] for i in (1, 3))
    assert len(after) < len(before)  # the history is gone from the context

    samples = tree_samples(trajectory.tree, rollout_id="r0", group_id="g", advantage=1.0)
    trained = sum(float(sample.weight.sum()) for sample in samples)
    assert trained == sum(len(completion.token_ids) for completion in engine.said["r0"])
    assert len(samples) >= 3  # before, the summary, after
    model = load_model(make_tiny(texts(), tmp_path / "model", MODEL))
    head = model.lm_head.weight.detach().clone()
    metrics = policy_trainer(model, TrainSettings(), temperature=1.0).step(samples)
    assert metrics["trained_tokens"] == trained
    assert not torch.equal(model.lm_head.weight, head)


def test_ten_at_once_are_each_their_own(tmp_path: Path) -> None:
    def answer(i: int, prompt: str) -> str:
        """Half of them mend the bug, the others say so and do not."""
        if "even" not in prompt:
            return "There is nothing to do."
        return GOOD(i, prompt)

    engine = ScriptedEngine(answer)

    async def scenario() -> list[Trajectory]:
        async with open_world(tmp_path, qwen_code(*SHORT), engine) as world:
            tasks = [replace(make_task(), problem="even" if i % 2 == 0 else "odd") for i in range(10)]
            return await asyncio.gather(*(world.attempt(task, f"r{i}") for i, task in enumerate(tasks)))

    for i, trajectory in enumerate(asyncio.run(scenario())):
        assert trajectory.outcome is (Outcome.RESOLVED if i % 2 == 0 else Outcome.NO_PATCH)
        assert_exact(trajectory, engine, f"r{i}")


def test_its_limit_on_turns_and_an_empty_reply_are_told_apart(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda i, prompt: READ if "even" in prompt else "")

    async def scenario() -> list[Trajectory]:
        limits = SessionLimits(calls=2)
        async with open_world(tmp_path, qwen_code(*SHORT), engine, limits=limits) as world:
            tasks = [replace(make_task(), problem=problem) for problem in ("even", "odd")]
            return await asyncio.gather(*(world.attempt(task, task.problem) for task in tasks))

    turns, empty = asyncio.run(scenario())
    assert turns.outcome is Outcome.TURN_LIMIT
    assert turns.metadata["program"]["exit_code"] == 53  # it ended by itself
    assert empty.outcome is Outcome.FORMAT_LIMIT
    assert empty.metadata["program"]["retries"] >= 1
    assert_exact(empty, engine, "odd")


def test_an_image_needs_neither_node_nor_python(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with tarfile.open(base_archive()) as archive:
        (layer,) = json.load(archive.extractfile("manifest.json"))[0]["Layers"]  # type: ignore[arg-type]
        with tarfile.open(fileobj=archive.extractfile(layer)) as inner:
            inner.extractall(root, filter="tar")
    for name in ("usr/local", "usr/bin/python3"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def scenario() -> str:
        engine = ScriptedEngine(script(READ, EDIT, "Fixed."))
        async with open_world(tmp_path, qwen_code(*SHORT), engine) as world:
            workspace = prepare_workspace(make_task(), tmp_path / "workspaces")
            spec = replace(world.parts.spec, image=f"rootfs:{root}", workdir="/testbed", layer=workspace)
            async with await world.parts.provider.start(spec) as sandbox:
                assert (await sandbox.exec("node -v; python3 -V")).exit_code == 127
                assert world.parts.new_chat is not None
                chat, run = world.parts.new_chat("r0", 0), AgentRun()
                await world.watched.agent.run(make_task(), sandbox, chat, run)
                assert run.submitted
                assert run.notes["program"]["exit_code"] == 0
                return (await sandbox.exec("cat stats.py")).text

    assert asyncio.run(scenario()) == FIXED
