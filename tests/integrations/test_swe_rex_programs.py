"""SWE-ReX's deployment on sandboxes, as mini-swe-agent and SWE-agent use it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

from hone.grading import Grader, GradingSettings
from hone.integrations.peer import PeerMissing, require
from hone.integrations.swe_rex.deployment import HoneDeployment
from hone.integrations.swe_rex.runtime import SandboxFailed
from hone.integrations.swe_rex.sweagent import instance
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.formats import save
from hone.types import Task
from tests.rollout.real import gold, tasks

SUBMIT = "git diff > /tmp/p; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat /tmp/p"
SWE_AGENT = os.environ.get("HONE_TEST_SWEAGENT_PYTHON", "")  # of an environment with Hone and SWE-agent
SWE_AGENT_SETTINGS = """
agent:
  templates: {system_template: "Work.", instance_template: "{{problem_statement}}"}
  tools:
    bundles: [{path: tools/registry}, {path: tools/submit}]
    parse_function: {type: thought_action}
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    save(tasks(1), tmp_path / "tasks.jsonl")
    return tmp_path / "tasks.jsonl"


def options(root: Path, file: Path) -> dict[str, Any]:
    return {"tasks": file, "task": tasks(1)[0].id, "sandbox": {"state_dir": root / "state"}}


def resolves(root: Path, task: Task, patch: str) -> bool:
    async def main() -> bool:
        async with make_provider(SandboxSettings(state_dir=root / "state")) as provider:
            return (await Grader(provider, GradingSettings(), cache=root / "w").grade(task, patch)).resolved

    return asyncio.run(main())


def deployments() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "hone-deployment"]


@pytest.mark.sandbox
def test_deployment_serves_one_event_loop_after_another(tmp_path: Path, task_file: Path) -> None:
    deployment = HoneDeployment(**options(tmp_path, task_file), env={"A": "3"})
    with pytest.raises(DeploymentNotStartedError):
        asyncio.run(deployment.is_alive())
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
    asyncio.run(deployment.runtime.run_in_session(BashAction(command="B=4")))
    action = BashAction(command="echo $A$B; pwd; git log --oneline | wc -l")
    assert asyncio.run(deployment.runtime.run_in_session(action)).output == "34\n/testbed\n4\n"
    runtime = deployment.runtime
    asyncio.run(deployment.stop())
    asyncio.run(deployment.stop())
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    assert deployments() == []
    del runtime


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"task": "other"}, "no task 'other'"), ({"tasks": Path("/nowhere")}, "nowhere")],
)
def test_failed_start_leaves_nothing(tmp_path: Path, task_file: Path, wrong: Any, message: str) -> None:
    deployment = HoneDeployment(**{**options(tmp_path, task_file), **wrong})
    with pytest.raises(DeploymentStartupError, match=message):
        asyncio.run(deployment.start())
    assert deployments() == []


def test_task_needs_its_file() -> None:
    with pytest.raises(ValueError, match="together, or neither"):
        HoneDeployment(task="a")


@pytest.mark.sandbox
def test_mini_swe_agent_resolves_a_task(tmp_path: Path, task_file: Path) -> None:
    task = tasks(1)[0]
    kind = "hone.integrations.swe_rex.mini.HoneEnvironment"
    environment: Any = get_environment(
        {**options(tmp_path, task_file), "environment_class": kind, "timeout": 60}
    )
    commands = ["exit 3", gold(task), SUBMIT]
    outputs = [make_output("I act.", [{"command": command}]) for command in commands]
    model = DeterministicModel(outputs=outputs)
    agent = DefaultAgent(model, environment, system_template="Work.", instance_template="{{ task }}")
    try:
        done = agent.run(task.problem)
    finally:
        environment.cleanup()
    assert done["exit_status"] == "Submitted"
    assert [m["extra"]["returncode"] for m in agent.messages if "returncode" in m.get("extra", {})] == [3, 0]
    assert resolves(tmp_path, task, done["submission"])


@pytest.mark.sandbox
def test_mini_swe_agent_sees_timeouts_but_no_lost_sandbox(tmp_path: Path, task_file: Path) -> None:
    from hone.integrations.swe_rex.mini import HoneEnvironment

    environment = HoneEnvironment(**options(tmp_path, task_file))
    timed_out = environment.execute({"command": "sleep 1000"}, timeout=1)
    assert (timed_out["returncode"], timed_out["extra"]["exception_type"]) == (-1, "CommandTimeoutError")
    thread = environment.deployment._thread
    assert thread is not None
    asyncio.run(thread.run(environment.deployment.runtime._sandbox.close()))
    with pytest.raises(SandboxFailed):
        environment.execute({"command": "true"})
    environment.cleanup()


def test_instance_names_the_task_and_its_repository(tmp_path: Path) -> None:
    task = tasks(1)[0]
    made = instance(task, tmp_path / "tasks.jsonl")
    assert made["env"]["deployment"] == {
        "type": "hone",
        "tasks": str(tmp_path / "tasks.jsonl"),
        "task": task.id,
    }
    assert made["env"]["repo"]["repo_name"] == "testbed"
    assert made["problem_statement"]["text"] == task.problem


def test_repository_below_a_folder_is_refused_for_swe_agent() -> None:
    import dataclasses

    task = tasks(1)[0]
    deep = dataclasses.replace(task.environment, workdir="/srv/testbed")
    with pytest.raises(TaskError, match="its repository is in /srv/testbed"):
        instance(dataclasses.replace(task, environment=deep), Path("tasks.jsonl"))


def test_missing_or_other_version_of_a_peer_is_one_sentence() -> None:
    with pytest.raises(PeerMissing, match=r"no-such-peer is not installed; >=1 is needed: pip install x"):
        require("no-such-peer", ">=1", "pip install x")
    with pytest.raises(PeerMissing, match=r"pytest .* is installed, but <1 is needed"):
        require("pytest", "<1", "pip install x")
    require("swe-rex", ">=1.4,<2", "")


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.skipif(not SWE_AGENT, reason="HONE_TEST_SWEAGENT_PYTHON names no Python with SWE-agent")
def test_swe_agent_resolves_a_task(tmp_path: Path, task_file: Path) -> None:
    task = tasks(1)[0]
    replies = ["I edit.\n```\n" + gold(task) + "\n```", "Done.\n```\nsubmit\n```"]
    (tmp_path / "replay.jsonl").write_text(json.dumps({task.id: replies}))
    (tmp_path / "settings.yaml").write_text(SWE_AGENT_SETTINGS)
    launcher = [SWE_AGENT, "-m", "hone.integrations.swe_rex.sweagent"]
    subprocess.run([*launcher, "instances", task_file, tmp_path / "instances.json"], check=True, timeout=120)
    subprocess.run(
        [
            *launcher,
            "run-batch",
            f"--config={tmp_path}/settings.yaml",
            "--agent.model.name=replay",
            f"--agent.model.replay_path={tmp_path}/replay.jsonl",
            "--instances.type=expert_file",
            f"--instances.path={tmp_path}/instances.json",
            f"--output_dir={tmp_path}/out",
        ],
        check=True,
        timeout=280,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    (prediction,) = json.loads((tmp_path / "out" / "preds.json").read_text()).values()
    assert resolves(tmp_path, task, prediction["model_patch"])
