"""The devices of a run on this machine, found before anything starts."""

from __future__ import annotations

import pytest

from hone.config import RunSettings, resolve
from hone.launch import placement
from hone.launch.placement import engine_gpus, place, place_trainer, trainer_device, trainer_gpus
from hone.utils.devices import Devices, equal_devices


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets the devices of this machine."""

    def use(devices: Devices) -> None:
        monkeypatch.setattr(placement, "find_devices", lambda: devices)

    return use


def settings(*sets: str) -> RunSettings:
    return resolve(None, ["engine.kind=vllm", "engine.tensor_parallel=2", *sets])


def test_trainer_and_servers_get_different_gpus(machine):
    machine(equal_devices(4, 80))
    placed = place(settings(), "train")
    assert trainer_device(placed) == "cuda:0"
    assert engine_gpus(placed) == ((1, 2),)
    assert not placed.placement.colocate


def test_judge_as_policy_has_the_judges_gpus(machine):
    machine(equal_devices(4, 80))
    judge = ["judge.enabled=true", "judge.engine.kind=sglang", "train.algorithm.reward=final"]
    placed = place(settings(*judge), "train")
    assert engine_gpus(placed.judge_as_policy()) == ((3,),)


def test_machine_without_gpus_leaves_servers_as_they_are(machine):
    machine(Devices(gpus=(), host_gib=16))
    placed = place(settings(), "train")
    assert trainer_device(placed) == "cpu"
    assert engine_gpus(placed) == ()
    assert place(placed, "train") == placed


def test_ranks_on_another_machine_have_gpus_of_the_run(machine):
    machine(equal_devices(4, 80))
    sets = ["train.learner=ranks", "train.ranks=8", "placement.nodes=2", "engine.urls=['http://a:1']"]
    placed = place(resolve(None, ["engine.kind=vllm", *sets]), "train")
    assert trainer_gpus(placed) == tuple(range(8))


def test_training_on_stored_rollouts_needs_no_gpus_for_an_engine(machine):
    machine(equal_devices(1, 80))
    assert trainer_device(place_trainer(settings("placement.colocate=true"))) == "cuda:0"
    assert trainer_device(place_trainer(settings("placement.trainer=cpu"))) == "cpu"
