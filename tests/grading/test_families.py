"""Rows of each data set in an image of its layout: from the row to an agent to a graded rollout."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hone.agents.scripted import noop, oracle
from hone.environment import prepare_workspace
from hone.grading import Grader, GradingSettings
from hone.grading.assess import assess
from hone.outcomes import Outcome
from hone.rollout.episode import Episode, run_episode
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.files import import_rows
from hone.tasks.gradeability import Gradeability
from hone.types import Task, Trajectory
from tests.families import FAMILIES, Row, import_family, write_lower_layers
from tests.rollout.real import open_context, script

PYTHON = "3.9"


@pytest.fixture(scope="module")
def lower_layers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_lower_layers(tmp_path_factory.mktemp("layers"), PYTHON)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    folder = tmp_path_factory.mktemp("cache")
    return SandboxSettings(cache_dir=folder, state_dir=folder / "state")


def roll_out(
    task: Task, settings: SandboxSettings, root: Path, commands: Callable[[Task, str], Iterable[str]]
) -> Trajectory:
    async def scenario() -> Trajectory:
        async with make_provider(settings) as provider, open_context(root, script(commands)) as context:
            grader = Grader(provider, GradingSettings(), cache=root / "workspaces")
            context = dataclasses.replace(context, provider=provider, grader=grader)
            workspace = await prepare_workspace(task, provider, root / "workspaces")
            episode = Episode(task=task, rollout_id="r", group_id="g", workspace=workspace, seed=0)
            return await run_episode(episode, context)

    return asyncio.run(scenario())


@pytest.mark.sandbox
@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_agent_in_the_image_is_graded(
    family: Callable[[Path], Row], lower_layers: list[Path], settings: SandboxSettings, tmp_path: Path
):
    assert settings.cache_dir is not None
    _, task = import_family(family, lower_layers, settings.cache_dir, tmp_path)
    fixed = roll_out(task, settings, tmp_path / "fixed", oracle)
    assert (fixed.outcome, fixed.error) == (Outcome.RESOLVED, None), (fixed.error, fixed.verdict)
    assert fixed.verdict is not None
    assert set(fixed.verdict.tests.values()) == {"passed"}
    useless = roll_out(task, settings, tmp_path / "useless", lambda *_: ["echo '# note' >> calc/__init__.py"])
    assert useless.outcome is Outcome.UNRESOLVED
    assert roll_out(task, settings, tmp_path / "none", noop).outcome is Outcome.NO_PATCH


def test_every_family_needs_its_image(tmp_path: Path):
    for family in FAMILIES:
        folder = tmp_path / family.__name__ / "testbed"
        folder.mkdir(parents=True)
        (task,) = import_rows([family(folder)]).tasks
        assert assess(task).status is Gradeability.NEEDS_IMAGE
