"""Real rollouts as ATIF files: they come back, and Harbor's validator, models and viewer take them.

HONE_TEST_HARBOR_PYTHON names the Python of an environment with harbor 0.25 and atif 1.8.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from hone.integrations.atif import from_atif, to_atif
from hone.launch.trajectories import Choice, export_rollouts, read_atif
from hone.outcomes import Outcome
from hone.rollout.store import Store
from hone.types import Trajectory
from tests.integrations.real_rollouts import KINDS, roll_out
from tests.integrations.test_atif import forked
from tests.rollout.test_store import assert_same, trajectories

pytestmark = [pytest.mark.sandbox, pytest.mark.xdist_group("atif_rollouts")]

VALIDATE = """
import json, sys
import atif
from harbor.utils.trajectory_validator import TrajectoryValidator
for line in sys.stdin:
    document, validator = json.loads(line), TrajectoryValidator()
    assert validator.validate(document), validator.get_errors()
    atif.Trajectory.model_validate(document)
    print("valid")
"""
VIEW = """
import sys
from pathlib import Path
from harbor.viewer.server import create_app
from starlette.testclient import TestClient
client = TestClient(create_app(Path(sys.argv[1])))
for trial in sys.argv[2:]:
    answer = client.get(f"/api/jobs/job/trials/{trial}/trajectory")
    assert answer.status_code == 200, answer.text
    print(len(answer.json()["steps"]))
"""
WRITE = """
from harbor.models.trajectories import (
    Agent, FinalMetrics, Metrics, Observation, ObservationResult, Step, SubagentTrajectoryRef, ToolCall,
    Trajectory,
)
agent = Agent(name="tiny", version="0.1", model_name="m")
call = ToolCall(tool_call_id="c1", function_name="bash", arguments={"command": "ls"})
result = ObservationResult(source_call_id="c1", content="a.py")
part = ObservationResult(subagent_trajectory_ref=[SubagentTrajectoryRef(trajectory_id="sub")])
metrics = Metrics(prompt_token_ids=[1, 2], completion_token_ids=[3], logprobs=[-0.5])
steps = [
    Step(step_id=1, source="user", message="Fix it."),
    Step(step_id=2, source="agent", message="I look.", tool_calls=[call], metrics=metrics,
         observation=Observation(results=[result, part])),
    Step(step_id=3, source="agent", message="Done."),
]
sub = Trajectory(trajectory_id="sub", agent=agent, steps=steps[:1])
whole = Trajectory(session_id="s", agent=agent, steps=steps, subagent_trajectories=[sub],
                   final_metrics=FinalMetrics(total_steps=3))
import json
print(json.dumps(whole.to_json_dict()))
"""


def harbor(*command: str, text: str = "") -> str:
    """Run Python in Harbor's environment and return its output; skip the test where there is none."""
    python = os.environ.get("HONE_TEST_HARBOR_PYTHON")
    if not python:
        pytest.skip("HONE_TEST_HARBOR_PYTHON names no Python with harbor 0.25.0 and atif 1.8.0")
    env = {**os.environ, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    done = subprocess.run(
        [python, *command], input=text, capture_output=True, text=True, timeout=240, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return kind of rollout -> its ATIF file; the run's other folder holds its rollouts."""
    root = tmp_path_factory.mktemp("rollouts")
    store = Store(root / "run" / "rollouts")
    for kind in KINDS:
        store.save(roll_out(kind, root / kind), group=0, index=0)
    export_rollouts(root / "run", root / "atif", "atif", Choice(), lambda *_: None)
    return {kind: root / "atif" / f"{kind}.json" for kind in KINDS}


def stored(files: dict[str, Path]) -> dict[str, Trajectory]:
    store = Store(files["bash"].parents[1] / "run" / "rollouts")
    return {each.rollout_id: each for each in map(store.load, store.names())}


def test_real_rollouts_come_back_bit_for_bit(files: dict[str, Path]) -> None:
    originals = stored(files)
    assert {kind: originals[kind].outcome for kind in KINDS} == {
        "black-box": Outcome.RESOLVED,
        "debugger": Outcome.RESOLVED,
        "forked": Outcome.RESOLVED,
        "bash": Outcome.RESOLVED,
        "faulty": Outcome.SANDBOX_ERROR,
        "crashed": Outcome.ENGINE_ERROR,
    }
    for kind, file in files.items():
        assert_same(read_atif(file), originals[kind])


def test_real_rollouts_fork_and_call_beside_their_turns(files: dict[str, Path]) -> None:
    black_box, forked = (json.loads(files[kind].read_bytes()) for kind in ("black-box", "forked"))
    assert [part["steps"][0]["extra"]["purpose"] for part in black_box["subagent_trajectories"]] == ["side"]
    assert [step["source"] for step in black_box["steps"] if step.get("is_copied_context")] == [
        "system",
        "agent",
    ]
    forks = [step["extra"]["fork"] for step in forked["steps"] if "fork" in step.get("extra", {})]
    assert forks == ["compacted"] * 3


def test_every_turn_of_a_real_rollout_holds_its_tokens(files: dict[str, Path]) -> None:
    for kind, trajectory in stored(files).items():
        steps = json.loads(files[kind].read_bytes())["steps"]
        replies = [step["metrics"]["completion_token_ids"] for step in steps if "metrics" in step]
        nodes = [trajectory.tree.nodes[turn.node] for turn in trajectory.turns if turn.node is not None]
        assert replies == [node.tokens.tolist() for node in nodes]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_harbor_validates_a_real_rollout(files: dict[str, Path], kind: str) -> None:
    said = harbor("-m", "harbor.utils.trajectory_validator", str(files[kind]))
    assert "Trajectory is valid" in said


@pytest.mark.full
def test_harbor_and_atif_accept_every_drawn_trajectory() -> None:
    drawn: list[Trajectory] = [forked()]

    @settings(deadline=None, database=None)
    @given(trajectories())
    def collect(trajectory: Trajectory) -> None:
        drawn.append(trajectory)

    collect()
    assert validated([to_atif(trajectory) for trajectory in drawn]) == len(drawn)


@pytest.mark.full
def test_harbor_views_real_rollouts(files: dict[str, Path], tmp_path: Path) -> None:
    for kind, file in files.items():
        agent = tmp_path / "job" / kind / "agent"
        agent.mkdir(parents=True)
        (agent / "trajectory.json").write_bytes(file.read_bytes())
    steps = [len(json.loads(file.read_bytes())["steps"]) for file in files.values()]
    assert harbor("-c", VIEW, str(tmp_path), *files).split() == list(map(str, steps))


@pytest.mark.full
def test_trajectory_of_harbor_opens_and_is_written_again() -> None:
    read = from_atif(json.loads(harbor("-c", WRITE)))
    assert (read.task_id, read.outcome, read.sampler.trainable) == ("s", Outcome.GRADER_ERROR, True)
    assert [(turn.reply, turn.action, turn.node) for turn in read.turns] == [
        ("I look.", "bash: ls", 1),
        ("Done.", None, None),
    ]
    assert read.tree.tokens(1).tolist() == [1, 2, 3]
    assert validated([to_atif(read)]) == 1


def validated(documents: Sequence[dict[str, Any]]) -> int:
    """Return how many documents the validators accepted; fail at the first that they do not."""
    text = "".join(json.dumps(document) + "\n" for document in documents)
    return harbor("-c", VALIDATE, text=text).count("valid")
