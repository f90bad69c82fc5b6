"""Grading Harbor tasks in sandboxes that run nothing: rewards, shells, limits, a full provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.environment import filter_patch
from hone.grading import GraderError, GradingSettings
from hone.grading.harbor import parse_rewards, run_stage
from hone.grading.run import TestRun
from hone.grading.solution import run_solution
from hone.sandbox import ExecResult, Limits, Provider, ProviderUnavailable, Sandbox, SandboxSpec
from hone.sandbox.contract import Command
from hone.tasks.formats import FORMATS
from hone.tasks.harbor import read_task
from tests.environment.scripted import ScriptedProvider, ended
from tests.integrations.harbor.folders import folders

FOLDER = folders()["shell-answer"]


def verify(provider: Provider, base: Path) -> TestRun:
    """Run the verifier of FOLDER on untouched files."""
    harbor = read_task(FOLDER)
    (stage,) = harbor.stages
    untouched = filter_patch("", ())
    return asyncio.run(run_stage(provider, harbor, stage, untouched, base, GradingSettings(), Limits()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"reward": true}', "reward is True"),
        ('{"reward": 1, "style": "2"}', "style is '2'"),
        ('{"reward": NaN}', "reward is nan"),
        ("[1]", r"reward is \[1\]"),
        ("{}", "it is empty"),
    ],
)
def test_reward_that_is_no_number_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_rewards("reward.json", text.encode())


def test_rewards_are_read_by_name() -> None:
    assert parse_rewards("reward.json", b'{"reward": 1, "style": 0.5}') == {"reward": 1.0, "style": 0.5}
    assert parse_rewards("reward.json", b"1") == parse_rewards("reward.txt", b"1\n") == {"reward": 1.0}


def test_shells_of_the_verifier_read_no_file_that_the_image_names(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    run = verify(provider, tmp_path)
    assert run.fault == "the verifier wrote no reward (exit code 0)"
    shells = [command.argv for command in provider.started[-1].commands if command.argv[0] == "/bin/bash"]
    assert [argv[1:3] for argv in shells] == [["-p", "-c"]] * 2


def test_verifier_without_a_sandbox_is_a_grader_error(tmp_path: Path) -> None:
    class Full(ScriptedProvider):
        async def start(self, spec: SandboxSpec) -> Sandbox:
            raise ProviderUnavailable("every sandbox is in use")

    with pytest.raises(GraderError, match="no sandbox to grade in: every sandbox is in use"):
        verify(Full(), tmp_path)


def test_solution_has_the_time_of_its_tasks_agent(tmp_path: Path) -> None:
    def answer(command: Command) -> ExecResult:
        if command.on_output is not None:
            command.on_output("stdout", bytes(10240))  # an archive of no files
        return ended()

    provider = ScriptedProvider(answer)
    task = FORMATS["harbor"].read({"name": "x", "folder": dict(FOLDER)})
    solved = run_solution(task, provider, GradingSettings(), Limits(), cache=tmp_path)
    assert asyncio.run(solved) == ""
    limits = [
        command.timeout_s for command in provider.started[-1].commands if command.argv == ["bash", "-s"]
    ]
    assert limits == [60.0]  # as its configuration says
