"""Sandboxes that the recipes of tinker-cookbook call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox.settings import SandboxSettings

pytestmark = [pytest.mark.full, pytest.mark.sandbox]
cookbook = pytest.importorskip("tinker_cookbook.sandbox", reason="tinker-cookbook is not installed")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    for name in ("environment", "tests"):
        (tmp_path / "task" / name).mkdir(parents=True)
    (tmp_path / "task" / "task.toml").write_text('[environment]\ndocker_image = "host"\nworkdir = "/app"\n')
    script = "#!/bin/bash\nmkdir -p /logs/verifier\ngrep -c done /app/made > /logs/verifier/reward.txt\n"
    (tmp_path / "task" / "tests" / "test.sh").write_text(script)
    return tmp_path / "task"


async def start(task: Path, *, lifetime_s: int = 600) -> Any:
    from hone.integrations.tinker_cookbook import sandbox_factory

    settings = SandboxSettings(state_dir=task.parent / "state")
    return await sandbox_factory(task / "environment", lifetime_s, settings=settings)


def test_sandbox_runs_commands_and_holds_files(task: Path) -> None:
    async def main() -> None:
        sandbox = await start(task)
        assert isinstance(sandbox, cookbook.SandboxInterface)
        await sandbox.send_heartbeat()
        done = await sandbox.run_command("pwd; echo b >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == ("/app\n", "b\n", 3)
        assert (await sandbox.run_command("seq 1 100000", max_output_bytes=4)).stdout == "1\n2\n"
        assert (await sandbox.run_command("sleep 1000", timeout=1)).exit_code == -1
        await sandbox.write_file("/app/new/go", "#!/bin/sh\necho é", executable=True)
        assert (await sandbox.run_command("new/go", workdir="/app")).stdout == "é\n"
        assert (await sandbox.read_file("/app/new/go", max_bytes=2)).stdout == "#!"
        assert (await sandbox.read_file("/app/none")).exit_code == 1
        assert (await sandbox.write_file("/app", "x")).exit_code == 1
        await sandbox.cleanup()
        await sandbox.cleanup()
        with pytest.raises(cookbook.SandboxTerminatedError):
            await sandbox.run_command("true")

    asyncio.run(main())


def test_sandbox_ends_with_its_lifetime(task: Path) -> None:
    async def main() -> None:
        sandbox = await start(task, lifetime_s=1)
        with pytest.raises(cookbook.SandboxTerminatedError):
            await sandbox.run_command("sleep 1000", timeout=600)
        await sandbox.cleanup()

    asyncio.run(main())


def test_recipe_for_harbor_tasks_earns_its_reward(task: Path) -> None:
    tools = pytest.importorskip("tinker_cookbook.recipes.harbor_rl.harbor_tools")
    tool_use = pytest.importorskip("tinker_cookbook.tool_use")
    call = tool_use.ToolInput(arguments={"command": "echo done > /app/made"}, call_id="c")

    async def main() -> tuple[float, float]:
        sandbox = await start(task)
        try:
            bash = tools.HarborBashTool(sandbox)
            reward = tools.HarborReward(tests_dir=task / "tests", sandbox=sandbox)
            before = (await reward([]))[0]
            said = await bash.bash.run(call)
            assert json.loads(said.messages[0]["content"])["exit_code"] == 0
            return before, (await reward([]))[0]
        finally:
            await sandbox.cleanup()

    assert asyncio.run(main()) == (0.0, 1.0)
