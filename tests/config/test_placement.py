"""Which devices a run gets on a machine, and what is said about a placement that the machine lacks."""

from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, resolve
from hone.config.placement import Placement, devices_of_run, resolve_placement
from hone.config.run import Command
from hone.utils.devices import DeviceError, Devices, Gpu, equal_devices, find_devices, visible_devices

NONE = Devices(gpus=(), host_gib=16.0)
EIGHT, TWO_NODES = equal_devices(8, 80), equal_devices(8, 80, nodes=2)
RANKS = ["train.learner=ranks", "train.ranks=4"]
JUDGE = ["judge.enabled=true", "judge.engine.kind=sglang", "train.algorithm.reward=final"]


def placed(*sets: str, devices: Devices = EIGHT, command: Command = "train") -> Placement:
    return resolve_placement(resolve(None, ["engine.kind=vllm", *sets]), devices, command)


def refused(*sets: str, devices: Devices = EIGHT) -> str:
    with pytest.raises(ConfigError) as error:
        placed(*sets, devices=devices)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_engine_takes_the_gpus_after_the_trainers():
    found = placed(*RANKS, "engine.servers=2", "engine.tensor_parallel=2")
    assert (found.trainer, found.engine, found.sleeps) == ((0, 1, 2, 3), ((4, 5), (6, 7)), False)


def test_colocated_engine_shares_the_trainers_gpus_and_sleeps():
    found = placed(*RANKS, "engine.tensor_parallel=4", "placement.colocate=true")
    assert (found.trainer, found.engine, found.sleeps) == ((0, 1, 2, 3), ((0, 1, 2, 3),), True)


def test_judge_takes_the_gpus_after_the_engines():
    found = placed(*JUDGE, "judge.engine.servers=2")
    assert (found.engine, found.judge) == (((1,),), ((2,), (3,)))
    assert placed(*JUDGE, command="sft").judge == ()


def test_machine_without_gpus_places_everything_on_the_cpu():
    found = placed(*RANKS, "engine.servers=4", devices=NONE)
    assert (found.trainer, found.engine) == ("cpu", ())


def test_threads_of_the_trainer_need_the_cpu():
    assert placed("train.batch.workers=2").trainer == "cpu"
    assert placed("train.batch.workers=2").engine == ((0,),)


def test_named_devices_are_used_as_they_are():
    found = placed("placement.trainer=[5]", "placement.engine=[[0, 1], [2, 3]]", *SERVERS)
    assert (found.trainer, found.engine) == ((5,), ((0, 1), (2, 3)))


SERVERS = ("engine.servers=2", "engine.tensor_parallel=2")


def test_evaluation_leaves_the_trainers_gpus_to_the_engine():
    assert placed(*RANKS, "engine.tensor_parallel=8", command="eval").engine == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("sets", "devices", "said"),
    [
        (
            ["train.learner=ranks", "train.ranks=16"],
            EIGHT,
            "train.ranks is 16, but the plan is for one",
        ),
        (["placement.trainer=[8]"], EIGHT, "names GPU 8, but the plan is for one machine with 8 GPUs"),
        (["placement.trainer=[0]"], NONE, "names GPU 0, but the plan is for one machine without a GPU"),
        (["placement.trainer=[0, 1]"], EIGHT, 'names 2 GPUs, but train.learner is "in_process": name 1 GPU'),
        ([*RANKS, "placement.trainer=[0, 1, 1, 2]"], EIGHT, "names GPU 1 twice"),
        (["placement.trainer=[]"], EIGHT, "placement.trainer holds an empty list"),
        (["placement.trainer=mps"], EIGHT, "this machine has no Apple GPU"),
        (["engine.servers=8"], EIGHT, "8 servers of 1 GPU, beside 1 GPU of others, do not fit one machine"),
        (["placement.engine=[[0], [1]]"], EIGHT, "lists 2 servers, but the engine has 1"),
        (["placement.engine=[[0, 1]]"], EIGHT, "gives a server 2 GPUs, but tensor_parallel is 1"),
        (
            ["placement.engine=[[9]]"],
            TWO_NODES,
            "names GPU 9 of another machine, where the run",
        ),
        (
            ["train.learner=ranks", "train.ranks=16"],
            TWO_NODES,
            "train.ranks is 16, but placement.nodes is 1, with 8 GPUs each: set placement.nodes",
        ),
        (["placement.engine=[[0]]"], NONE, "one machine without a GPU, 16 GiB of memory: remove it, or use"),
        (["placement.nodes=3"], TWO_NODES, "placement.nodes is 3, but the plan is for 2 machines"),
        (["engine.kind=local", "placement.engine=[[0]]"], EIGHT, 'has no effect with engine kind "local"'),
        (
            ["placement.colocate=true", "placement.engine=[[3]]"],
            EIGHT,
            "placement.colocate has no effect, because the engine's servers share no GPU",
        ),
        (
            ["placement.colocate=true", "placement.engine=[[0]]", "engine.urls=['http://a']"],
            EIGHT,
            "placement.colocate needs servers that the run starts",
        ),
        (
            ["placement.colocate=true", "placement.engine=[[0]]", "engine.weight_sync=nccl"],
            EIGHT,
            'engine.weight_sync is "nccl", but the engine\'s servers share GPUs with the trainer',
        ),
    ],
)
def test_placement_that_the_machine_lacks_is_refused(sets: list[str], devices: Devices, said: str):
    assert said in refused(*sets, devices=devices)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("placement.trainer=gpu", "placement.trainer: 'gpu' is no device"),
        ("placement.trainer=[-1]", "placement.trainer: [-1] is no device"),
        ("placement.engine=[0, 1]", "placement.engine: [0, 1] lists no servers"),
        ("placement.engine=none", "placement.engine: 'none' lists no servers"),
    ],
)
def test_value_that_is_no_device_is_an_error(text: str, said: str):
    with pytest.raises(ConfigError) as error:
        resolve(None, [text])
    assert said in str(error.value)


def test_servers_of_other_machines_have_gpus_of_the_plan():
    sets = ["placement.engine=[[8, 9]]", "engine.urls=['http://b:8000']", "placement.nodes=2"]
    assert placed(*sets, devices=TWO_NODES).engine == ((8, 9),)


def test_run_on_several_machines_counts_machines_like_this_one():
    settings = resolve(None, ["placement.nodes=2"])
    used = Gpu(name="", memory_gib=80, free_gib=20, processes=(4711,))
    found = devices_of_run(settings, Devices(gpus=(used,), host_gib=160))
    assert (found.nodes, found.gpus_per_node) == (2, 1)
    assert [(gpu.free_gib, gpu.processes) for gpu in found.gpus] == [(20, (4711,)), (80, ())]
    assert devices_of_run(settings, NONE) == NONE


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


LISTED = """case "$1" in
*compute-apps*) echo "GPU-bb, 4711" ;;
*) echo "0, GPU-aa, NVIDIA H100, 81559, 81079"; echo "1, GPU-bb, NVIDIA H100, 81559, 1000" ;;
esac"""


def test_gpus_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path, monkeypatch, LISTED)
    found = find_devices({})
    assert [(gpu.processes, round(gpu.free_gib)) for gpu in found.gpus] == [((), 79), ((4711,), 1)]
    assert find_devices({"CUDA_VISIBLE_DEVICES": "1"}).gpus == found.gpus[1:]
    assert find_devices({"CUDA_VISIBLE_DEVICES": "GPU-bb,0"}).gpus == found.gpus[::-1]
    assert find_devices({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES names '7'"):
        find_devices({"CUDA_VISIBLE_DEVICES": "7"})


def test_broken_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nvidia_smi(tmp_path, monkeypatch, "echo 'Failed to initialize NVML: driver mismatch'; exit 9")
    with pytest.raises(DeviceError, match="Failed to initialize NVML: driver mismatch"):
        find_devices({})


@pytest.mark.parametrize(
    ("own", "gpus", "text"),
    [(None, (1, 3), "1,3"), ("4,5,6", (0, 2), "4,6"), ("GPU-a, GPU-b", (1,), "GPU-b")],
)
def test_gpus_of_a_process_are_named_for_its_child(own: Any, gpus: tuple[int, ...], text: str):
    environment = {} if own is None else {"CUDA_VISIBLE_DEVICES": own}
    assert visible_devices(gpus, environment) == text
