"""Two rollouts by slime's RolloutManager on a real SGLang server behind the real router, and a resumed third.

HONE_SGLANG_PYTHON is the Python of an environment with SGLang 0.5.15, its router, slime's requirements and
Hone's base install, HONE_TEST_SLIME_CHECKOUT slime's checkout. HONE_TEST_SLIME_MODEL is a model that solves
some tasks of the curriculum with the tiny prompts, such as the start model of the quickstart.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from hone.config import resolve
from hone.integrations.slime.launch import SlimePlan, plan_slime, write_files
from hone.policy.engines.managed_server import ManagedServer, free_port
from hone.policy.model import load_model, load_tokenizer
from hone.policy.settings import ModelSettings, ServerEngineSettings
from hone.rollout.order import TaskOrder
from hone.rollout.store import Store
from hone.tasks.sources import load_splits
from hone.train.algorithms import compute_advantages
from hone.types import Trajectory
from tests.waiting import wait_until

CHECKOUT = os.environ.get("HONE_TEST_SLIME_CHECKOUT", "")
MODEL = os.environ.get("HONE_TEST_SLIME_MODEL", "")
PYTHON = os.environ.get("HONE_SGLANG_PYTHON", "")
IN_SLIME = Path(__file__).parent / "in_slime"
ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.full,
    pytest.mark.sglang,
    pytest.mark.sandbox,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(not CHECKOUT, reason="HONE_TEST_SLIME_CHECKOUT names no checkout of slime"),
    pytest.mark.skipif(not PYTHON, reason="HONE_SGLANG_PYTHON names no interpreter"),
    pytest.mark.skipif(not MODEL, reason="HONE_TEST_SLIME_MODEL names no model that acts"),
]
GROUPS, SIZE, CONTEXT = 2, 4, 512
STALLED = 2  # the group whose rollouts never end by themselves, in the first two rollouts
READY_S = 1800.0  # of the server and of the router, on a machine that is busy otherwise
PROGRAM = """
name = "reviewing-client"
wire = "openai"
[install]
kind = "directory"
source = "tools"
[run]
command = ["python3", "{{{{ layer }}}}/app/reviewing_client.py", "{{{{ prompt }}}}", {stalled}]
prompt = "{{{{ problem }}}}"
env = {{ URL = "{{{{ base_url }}}}", KEY = "{{{{ key }}}}", MODEL = "{{{{ model }}}}" }}
[[exits]]
ending = "submitted"
code = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Two rollouts of a manager of slime, and one of a second manager, which resumes."""

    plans: tuple[SlimePlan, SlimePlan]
    rollouts: tuple[dict[str, Any], ...]
    log: str
    models: tuple[Path, ...]  # by the version of the weights

    def stored(self, number: int) -> dict[str, Trajectory]:
        """Return the rollouts that the manager of a rollout has stored, by their id."""
        store = Store(self.plans[number // 2].settings.run_dir / "rollouts")
        return {each.rollout_id: each for each in map(store.load, store.names())}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Return the model, and two others near it."""
    folder = tmp_path_factory.mktemp("models")
    found = [Path(shutil.copytree(MODEL, folder / "0"))]
    for version in (1, 2):
        model = load_model(found[0])
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.03 * weight.std() * torch.randn(weight.shape, generator=generator)
        model.save_pretrained(folder / str(version))
        load_tokenizer(found[0]).save_pretrained(folder / str(version))
        found.append(folder / str(version))
    return tuple(found)


@pytest.fixture(scope="module")
def server(models: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an SGLang server."""
    settings = ServerEngineSettings(
        kind="sglang", context_tokens=CONTEXT, threads=1, python=Path(PYTHON), ready_timeout_s=READY_S
    )
    log = tmp_path_factory.mktemp("engine") / "server.log"
    managed = ManagedServer("sglang", settings, ModelSettings(path=models[0]), log)
    with asyncio.Runner() as runner:
        try:
            yield runner.run(managed.start())
        finally:
            runner.run(managed.stop())


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a router that knows no server yet: slime registers its own."""
    port, metrics = free_port("127.0.0.1"), free_port("127.0.0.1")
    command = [PYTHON, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    options = ["--prometheus-port", str(metrics), "--disable-circuit-breaker", "--disable-health-check"]
    log = tmp_path_factory.mktemp("router") / "router.log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
    try:
        wait_until(lambda: process.poll() is not None or _is_alive(port), log.read_text, limit_s=READY_S)
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def _is_alive(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/liveness", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def make_plan(folder: Path, model: Path, *, stalled: int | None, more: list[str]) -> SlimePlan:
    """Return Hone's command line for slime; the rollouts of the `stalled` group never end by themselves."""
    recipe = {
        "run_dir": str(folder / "run"),
        "seed": 3,
        "groups_per_step": GROUPS,
        "model": {"path": str(model)},
        "tasks": {"curriculum": "more_families", "variety": 2, "train": 40, "test": 0, "unseen": 0},
        "agent": {"kind": "blackbox", "program": str(folder / "client.toml")},
        "engine": {"kind": "sglang", "context_tokens": CONTEXT},
        "sampling": {"max_tokens": 64},
        "rollout": {
            "group_size": SIZE,
            "concurrent_episodes": 3 * SIZE,
        },
        "train": {"steps": 3},
    }
    (folder / "tools").mkdir(parents=True)
    shutil.copy(IN_SLIME / "reviewing_client.py", folder / "tools")
    (folder / "client.toml").write_text(PROGRAM.format(stalled='""'))
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    settings = resolve(folder / "recipe.toml")
    if stalled is not None:
        tasks = load_splits(settings.tasks).train
        task = TaskOrder(tasks, seed=settings.seed, groups_per_step=GROUPS).task(stalled)
        (folder / "client.toml").write_text(PROGRAM.format(stalled=json.dumps(task.problem)))
    plan = plan_slime(settings, Path(CHECKOUT), more)
    write_files(plan)
    return plan


def roll_out(folder: Path, plans: list[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], str]:
    """Return what each rollout of slime gives, and its log."""
    (folder / "plans.json").write_text(json.dumps(plans))
    path = os.pathsep.join([str(IN_SLIME), CHECKOUT, str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [PYTHON, IN_SLIME / "manager.py", folder / "plans.json"]
    with (folder / "slime.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    text = (folder / "slime.log").read_text()
    assert done.returncode == 0, text[-6000:]
    (found,) = (line for line in text.splitlines() if line.startswith("FOUND "))
    return tuple(json.loads(found.removeprefix("FOUND "))), text


@pytest.fixture(scope="module")
def found(
    server: str, router: int, models: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Found:
    folder = tmp_path_factory.mktemp("slime")
    checkpoints = folder / "checkpoints"

    def arguments(sampled: int) -> list[str]:
        values = {
            "rollout-external-engine-addrs": server,
            "sglang-router-ip": "127.0.0.1",
            "sglang-router-port": router,
            "over-sampling-batch-size": sampled,
            "data-source-path": "in_workers.RecordedSource",
            "save-debug-rollout-data": checkpoints / "samples-{rollout_id}.pt",
            "save": checkpoints,
            "ref-load": checkpoints,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]

    options = arguments(GROUPS + 1), arguments(GROUPS)
    first = make_plan(folder / "first", models[0], stalled=STALLED, more=options[0])
    second = make_plan(folder / "second", models[0], stalled=None, more=options[1])
    weights = [[str(models[version]), version] for version in (1, 2)]
    rollouts, log = roll_out(
        folder,
        [
            {"arguments": first.arguments, "start": -1, "weights": [None, weights[0]]},
            {"arguments": second.arguments, "start": 1, "weights": [weights[1]]},
        ],
    )
    return Found(plans=(first, second), rollouts=rollouts, log=log, models=models)


@pytest.mark.parametrize("number", range(3))
def test_batch_holds_whole_groups_and_each_sampled_token_once(found: Found, number: int) -> None:
    rows, train = found.rollouts[number]["rows"], found.rollouts[number]["train"]
    stored = found.stored(number)

    by_rollout: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        assert row["rollout_id"] == row["index"]
        by_rollout.setdefault(row["rollout_id"], []).append(at)
    assert len(by_rollout) == GROUPS * SIZE
    assert train["rollout_ids"] == [rows[at]["rollout_id"] for at in train["partition"]]
    assert train["global_batch_sizes"] == [GROUPS * SIZE]
    for at, tokens, mask, logprobs, length in zip(
        train["partition"],
        train["tokens"],
        train["loss_masks"],
        train["rollout_log_probs"],
        train["response_lengths"],
        strict=True,
    ):
        assert len(mask) == len(logprobs) == length < len(tokens), at
    masks = dict(zip(train["partition"], train["loss_masks"], strict=True))
    sums = dict(zip(train["partition"], train["rollout_mask_sums"], strict=True))
    for members in by_rollout.values():
        trajectory = stored[rows[members[0]]["metadata"]["hone"]["rollout_id"]]
        sampled = trajectory.tree.sampled_tokens
        assert sum(sum(masks[at]) for at in members) == sampled
        assert {sums[at] for at in members} == {sampled}


@pytest.mark.parametrize("number", range(3))
def test_forked_rollouts_have_a_row_for_each_branch(found: Found, number: int) -> None:
    rows = found.rollouts[number]["rows"]
    forks = {row["rollout_id"]: row["metadata"]["hone"]["forks"] for row in rows}
    counts = {name: sum(row["rollout_id"] == name for row in rows) for name in forks}

    assert sum(counts.values()) > len(counts)
    assert {name for name, count in counts.items() if count > 1} == {name for name in forks if forks[name]}


@pytest.mark.parametrize("number", range(3))
def test_logprobs_are_those_of_the_weights_that_the_rows_name(found: Found, number: int) -> None:
    train, rows = found.rollouts[number]["train"], found.rollouts[number]["rows"]
    versions = [row["weight_versions"] for row in rows]
    assert versions == [[str(number)]] * len(rows)

    gaps = {version: logprob_gap(found.models[version], train) for version in range(3)}
    assert gaps[number] <= 1e-4
    assert min(gap for version, gap in gaps.items() if version != number) > 1e-2


def logprob_gap(folder: Path, train: dict[str, Any]) -> float:
    """Return the largest difference to the log-probabilities of a model."""
    model, largest = load_model(folder), 0.0
    for tokens, mask, logprobs in zip(
        train["tokens"], train["loss_masks"], train["rollout_log_probs"], strict=True
    ):
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            every = torch.log_softmax(model(ids).logits[0, :-1], -1)
        own = every.gather(1, ids[0, 1:, None])[:, 0].numpy()[-len(mask) :]
        chosen = np.array(mask) > 0
        largest = max(largest, float(np.abs(own - np.array(logprobs))[chosen].max()))
    return largest


@pytest.mark.parametrize("number", range(3))
def test_advantages_of_slimes_batch_are_those_of_hone(found: Found, number: int) -> None:
    train, rows = found.rollouts[number]["train"], found.rollouts[number]["rows"]
    stored = found.stored(number)
    kept = {row["metadata"]["hone"]["rollout_id"] for row in rows}
    settings = found.plans[0].settings.train.algorithm
    expected = compute_advantages([stored[name] for name in sorted(kept)], settings).advantages

    for at, advantage in zip(train["partition"], train["rewards"], strict=True):
        name = rows[at]["metadata"]["hone"]["rollout_id"]
        assert advantage == pytest.approx(expected.get(name, 0.0), abs=1e-6)
        assert train["raw_reward"][at] == stored[name].reward


def test_abort_ends_rollouts_that_would_never_end(found: Found) -> None:
    for each in found.rollouts[:2]:
        assert STALLED in each["given_back"]
    assert [each["clients"] for each in found.rollouts] == [0, 0, 0]
    assert not any(name.startswith(f"g{STALLED}-") for name in found.stored(0))


def test_groups_given_back_come_first_also_after_a_restart(found: Found) -> None:
    first, second, resumed = found.rollouts

    assert first["handed_out"][: GROUPS + 1] == list(range(GROUPS + 1))
    for before, after in ((first, second), (second, resumed)):
        count = min(len(before["given_back"]), len(after["handed_out"]))
        assert after["handed_out"][:count] == before["given_back"][:count]
    again = [row for row in resumed["rows"] if row["group_index"] == STALLED]
    assert {row["index"] for row in again} == set(range(STALLED * SIZE, (STALLED + 1) * SIZE))


def test_slime_logs_the_metrics_of_hone(found: Found) -> None:
    for number, each in enumerate(found.rollouts):
        known = {row["rollout_id"]: row["metadata"]["hone"] for row in each["rows"]}
        rate = sum(facts["resolved"] for facts in known.values()) / len(known)
        (line,) = (x for x in found.log.splitlines() if f"perf {number}: " in x)
        assert f"'hone/rollouts': {float(GROUPS * SIZE)}" in line
        assert f"'hone/resolve_rate': {rate}" in line
        assert "'rollout/response_len/mean'" in line
