"""Environments for TRL's plain trainer, in real sandboxes."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError
from hone.integrations.trl.environments import BashEnvironment, Environments, open_environments
from hone.sandbox import ProviderUnavailable, SandboxLost
from hone.types import Task
from tests.integrations.rollouts.examples import fix, make_recipe

pytestmark = pytest.mark.sandbox


def first(environments: Environments) -> Task:
    return next(iter(environments.tasks.values()))


def reward(environment: BashEnvironment) -> float | None:
    return asyncio.run(environment.get_reward())


def test_fix_by_commands_is_rewarded_and_the_next_rollout_starts_afresh(tmp_path: Path) -> None:
    with open_environments(make_recipe(tmp_path)) as environments:
        task = first(environments)
        environment = environments()
        assert environment.reset(task_id=task.id, prompt=[]) == task.problem
        command = fix(task)
        asyncio.run(environment.bash(command))
        assert asyncio.run(environment.bash("false")).endswith("(exit code 1)")
        assert reward(environment) == 1.0
        environment.reset(task_id=task.id)
        assert asyncio.run(environment.bash("git status --porcelain")) == ""
        assert reward(environment) == -1.0


def test_sandbox_that_cannot_start_gives_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ProviderUnavailable("no room", retryable=True)

    with open_environments(make_recipe(tmp_path)) as environments:
        monkeypatch.setattr(environments.runtime.provider, "start", fail)
        environment = environments()
        environment.reset(task_id=first(environments).id)
        assert "sandbox is gone" in asyncio.run(environment.bash("ls"))
        assert reward(environment) is None


def test_open_sandboxes_are_closed_at_the_end(tmp_path: Path) -> None:
    with open_environments(make_recipe(tmp_path)) as environments:
        environments().reset(task_id=first(environments).id)
        (sandbox,) = environments.sandboxes
    with pytest.raises(SandboxLost):
        asyncio.run(sandbox.exec("true", timeout_s=5))


def test_only_bash_is_offered_as_a_tool_with_a_schema() -> None:
    from transformers.utils import get_json_schema

    methods = [name for name, _ in inspect.getmembers(BashEnvironment, inspect.isfunction) if name[0] != "_"]
    assert methods == ["bash", "get_reward", "reset"]
    schema: Any = get_json_schema(BashEnvironment.bash)
    assert json.loads(json.dumps(schema))["function"]["parameters"]["required"] == ["command"]


def test_row_without_a_known_task_is_refused(tmp_path: Path) -> None:
    with (
        open_environments(make_recipe(tmp_path)) as environments,
        pytest.raises(ConfigError, match="column task_id holds 'other'"),
    ):
        environments().reset(task_id="other")
