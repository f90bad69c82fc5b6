"""The published qwen-code in sandboxes without a network, with a scripted engine."""

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
from hone.policy.reply import CallKind
from hone.policy.tiny import make_tiny
from hone.tasks.workspace import prepare as prepare_workspace
from hone.train.samples import tree_samples
from hone.train.settings import TrainSettings
from hone.train.trainer import policy_trainer
from hone.types import Task, Trajectory
from tests.agents.blackbox.broken_forward import broken_forward
from tests.agents.blackbox.exactness import assert_exact
from tests.agents.blackbox.world import (
    MODEL,
    ScriptedEngine,
    call,
    open_world,
    published,
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
# a short system prompt and two tools, so that tests take seconds
UNUSED = (
    "agent,skill,tool_search,tool_call,notebook_edit,list_agents,get_goal,update_goal,glob,grep_search,cron_create,"
    "cron_delete,cron_list,enter_worktree,exit_worktree,loop_wakeup,monitor,read_mcp_resource,record_artifact,"
    "report_findings,send_message,task_stop,web_fetch,zoom_image,write_file,run_shell_command"
)
SHORT = ("--safe-mode", "--system-prompt", "You fix bugs.", "--exclude-tools", UNUSED)


def test_qwen_code_fixes_the_bug_with_exact_tokens(tmp_path: Path) -> None:
    engine = ScriptedEngine(GOOD)

    async def scenario() -> Trajectory:
        async with open_world(tmp_path, published("qwen-code"), engine) as world:
            return await world.attempt(make_task())

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert trajectory.patch.count("diff --git") == 1  # no folder of its own, no cache
    assert_exact(trajectory, engine)
    look, fix, end = (turn.action for turn in trajectory.turns)
    assert look == 'read_file {"file_path": "/testbed/stats.py"}'
    assert fix is not None
    assert fix.startswith("edit {")
    assert fix.endswith("\nrun_shell_command: git diff")
    assert end is None
    assert "return a - b" in trajectory.turns[0].observation
    assert "has been updated" in trajectory.turns[1].observation
    report = trajectory.notes["program"]
    assert (report["exit_code"], report["exchanges"], report["retries"]) == (0, {"main": 3}, 0)


def big_task() -> Task:
    """The example with a file that fills much of the context."""
    task = make_task()
    start, last = task.environment.history
    numbers = "".join(f"{number} {number} {number}\n" for number in range(10_000, 10_100))
    last = replace(last, files={**last.files, "numbers.txt": numbers})
    return replace(task, environment=replace(task.environment, history=(start, last)))


@pytest.mark.full
def test_dropped_connection_and_compaction_keep_every_token(
    tmp_path: Path,
) -> None:
    snapshot = "<analysis>Much was read.</analysis>\n<state_snapshot>Fix add in stats.py.</state_snapshot>"
    count = call("read_file", file_path="/testbed/numbers.txt")
    turns = iter([count, READ, READ, EDIT, "Fixed."])

    def answer(i: int, prompt: str) -> str:
        return snapshot if "produce the <state_snapshot> XML" in prompt[-200:] else next(turns)

    engine = ScriptedEngine(answer, context_tokens=10_500)
    cuts: list[bytes] = []

    def amid_the_second_call(back: bytes) -> bool:
        return not cuts and b"tool_calls" in back and b"stats.py" in back

    async def scenario() -> Trajectory:
        async with open_world(tmp_path, published("qwen-code", *SHORT), engine) as world:
            spec = world.context.spec
            assert spec.tunnel is not None
            line = spec.tunnel.parent / "line"
            async with broken_forward(line, spec.tunnel, amid_the_second_call, cuts):
                world.context = replace(world.context, spec=replace(spec, tunnel=line))
                return await world.attempt(big_task())

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert len(cuts) == 1
    assert trajectory.notes["program"]["retries"] >= 1  # answered from the record
    assert_exact(trajectory, engine)
    purposes = [call.purpose for call in trajectory.calls]
    assert purposes[:4] == [CallKind.MAIN, CallKind.MAIN, CallKind.AUXILIARY, CallKind.MAIN]
    assert purposes.count(CallKind.MAIN) == 5
    assert trajectory.forks["compacted"] >= 1
    assert [turn.reply for turn in trajectory.turns] == ["", "Let me look.", "Let me look.", "", "Fixed."]
    before, after = (engine.prompts["r0"][i] for i in (1, 3))
    assert len(after) < len(before)  # without the history

    samples = tree_samples(trajectory.tree, rollout_id="r0", group_id="g", advantage=1.0)
    trained = sum(float(sample.weight.sum()) for sample in samples)
    assert trained == sum(len(completion.token_ids) for completion in engine.completions["r0"])
    assert len(samples) >= 3  # before the compaction, the summary, and after it
    model = load_model(make_tiny(texts(), tmp_path / "model", MODEL))
    head = model.lm_head.weight.detach().clone()
    metrics = policy_trainer(model, TrainSettings(), temperature=1.0).step(samples)
    assert metrics["trained_tokens"] == trained
    assert not torch.equal(model.lm_head.weight, head)


@pytest.mark.full
def test_ten_concurrent_rollouts_do_not_mix(tmp_path: Path) -> None:
    kinds = {
        "fix it": (Outcome.RESOLVED, GOOD),
        "leave it": (Outcome.NO_PATCH, script("There is nothing to do.")),
        "look at it": (Outcome.TURN_LIMIT, script(READ)),
        "say nothing": (Outcome.FORMAT_LIMIT, script("")),
    }
    problems = ["fix it"] * 5 + ["leave it"] * 3 + ["look at it", "say nothing"]

    def answer(i: int, prompt: str) -> str:
        statement = prompt.split("## Problem Statement")[1][:40]
        return next(reply(i, prompt) for problem, (_, reply) in kinds.items() if problem in statement)

    engine = ScriptedEngine(answer)

    async def scenario() -> list[Trajectory]:
        limits = SessionLimits(calls=3)
        async with open_world(tmp_path, published("qwen-code", *SHORT), engine, limits=limits) as world:
            tasks = [replace(make_task(), problem=problem) for problem in problems]
            return await asyncio.gather(*(world.attempt(task, f"r{i}") for i, task in enumerate(tasks)))

    for i, (problem, trajectory) in enumerate(zip(problems, asyncio.run(scenario()), strict=True)):
        assert (problem, trajectory.outcome) == (problem, kinds[problem][0])
        assert_exact(trajectory, engine, f"r{i}")
        if problem == "look at it":
            assert trajectory.notes["program"]["exit_code"] == 53  # it ended by itself
        if problem == "say nothing":
            assert trajectory.notes["program"]["retries"] >= 1
            assert len(trajectory.turns) == 1


@pytest.mark.full
def test_image_needs_neither_node_nor_python(tmp_path: Path) -> None:
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
        async with open_world(tmp_path, published("qwen-code", *SHORT), engine) as world:
            workspace = prepare_workspace(make_task(), tmp_path / "workspaces")
            spec = replace(world.context.spec, image=f"rootfs:{root}", workdir="/testbed", layer=workspace)
            async with await world.context.provider.start(spec) as sandbox:
                assert (await sandbox.exec("node -v; python3 -V")).exit_code == 127
                assert world.context.new_chat is not None
                chat, run = world.context.new_chat("r0", 0), AgentRun()
                await world.watched.agent.run(make_task(), sandbox, chat, run)
                assert run.submitted
                assert run.notes["program"]["exit_code"] == 0
                return (await sandbox.exec("cat stats.py")).text

    assert asyncio.run(scenario()) == FIXED
