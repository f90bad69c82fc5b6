"""What a recipe says reaches the context of the rollouts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.agents.settings import ScriptedAgentSettings
from hone.config import RunSettings
from hone.environment import BrokenTree, base_mounts
from hone.grading import GradingSettings
from hone.launch.runtime import open_context, open_runtime
from hone.sandbox import SandboxSpec
from hone.tasks.workspace import prepare
from tests.grading.example import make_task

pytestmark = pytest.mark.sandbox


def test_patch_size_limit_of_the_recipe_is_enforced(tmp_path: Path) -> None:
    settings = RunSettings(run_dir=tmp_path / "run", grading=GradingSettings(max_patch_kib=2))
    task = make_task()
    workspace = prepare(task, tmp_path / "workspaces")

    async def scenario() -> None:
        async with (
            open_runtime(settings) as runtime,
            open_context(runtime, settings, ScriptedAgentSettings(kind="noop"), None) as context,
        ):
            spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace))
            async with await runtime.provider.start(spec) as sandbox:
                await sandbox.exec("head -c 3000 /dev/urandom > new.bin")
                with pytest.raises(BrokenTree, match="larger than 2 KiB"):
                    await context.extract(sandbox, task)

    asyncio.run(scenario())
