"""Rollouts by slime's RolloutManager under Ray, from the command line that Hone prints for slime.

    python manager.py PLANS    with slime's checkout, this directory and Hone on PYTHONPATH

PLANS is a JSON file: for each manager, one after the other, `arguments` (of slime's train.py), `start` (the
rollout before its first; -1: none) and `weights` (for each rollout: null, or the folder and the version that
the engine loads before it). After each rollout, the groups that slime has cut short are given back. Prints
one line of JSON with all rollouts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
import requests
import torch
from in_workers import after_rollout
from slime.backends.sglang_utils.arguments import sglang_parse_args
from slime.backends.sglang_utils.arguments import validate_args as validate_sglang_arguments
from slime.ray.rollout import RolloutManager
from slime.utils.arguments import _pre_parse_mode, get_slime_extra_args_provider, slime_validate_args

PARALLEL = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
MEGATRON = {  # its own flags among those of Hone's command line
    "min-lr": float,
    "lr-decay-style": str,
    "lr-warmup-iters": int,
    "weight-decay": float,
    "adam-beta1": float,
    "adam-beta2": float,
    "adam-eps": float,
    "optimizer": str,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse as slime's `parse_args`, which needs Megatron, does."""
    sys.argv[1:] = arguments
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, kind in MEGATRON.items():
        parser.add_argument(f"--{name}", type=kind)
    get_slime_extra_args_provider()(parser)
    args, unknown = parser.parse_known_args()
    sglang = sglang_parse_args()
    for name, value in {**vars(_pre_parse_mode()), **vars(sglang)}.items():
        setattr(args, name, value)
    left = {
        word for word in unknown if word.startswith("--") and not hasattr(sglang, word[2:].replace("-", "_"))
    }
    assert not left, f"neither slime nor SGLang knows {left}"
    args.fp16 = False  # Megatron's
    slime_validate_args(args)
    validate_sglang_arguments(args)
    return args


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def load_weights(manager: Any, folder: str, version: int) -> None:
    """Update the engine as slime's trainer does with weights on disk."""
    engines, *_ = ray.get(manager.get_updatable_engines_and_lock.remote())
    for engine in engines:
        ray.get(engine.pause_generation.remote())
        ray.get(engine.flush_cache.remote())
        reply = ray.get(engine.update_weights_from_disk.remote(folder, weight_version=str(version)))
        assert reply["success"], reply
        ray.get(engine.continue_generation.remote())


def plain(value: Any) -> Any:
    """Return what JSON takes."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def roll_out(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rollouts of one manager, in a process of its own that is killed at the end."""
    args = parse(plan["arguments"])
    manager = RolloutManager.options(num_cpus=1).remote(args, (None, [], []))
    ray.get(manager.set_train_parallel_config.remote(PARALLEL))
    ray.get(manager.load.remote(plan["start"]))
    found = []
    for rollout_id, weights in enumerate(plan["weights"], start=plan["start"] + 1):
        if weights is not None:
            load_weights(manager, *weights)
        (reference,) = ray.get(manager.generate.remote(rollout_id))
        train = plain(ray.get(reference.inner))
        file = args.save_debug_rollout_data.format(rollout_id=rollout_id)
        samples = torch.load(file, weights_only=False)["samples"]
        kept = {sample["group_index"] for sample in samples}
        after = ray.get(manager.__ray_call__.remote(after_rollout, kept))
        ray.get(manager.save.remote(rollout_id))
        names = ("index", "rollout_id", "group_index", "weight_versions", "metadata", "reward")
        rows = [{name: plain(sample[name]) for name in names} for sample in samples]
        found.append({"train": train, "rows": rows, **after})
    ray.kill(manager)
    unregister_servers(f"http://{args.sglang_router_ip}:{args.sglang_router_port}/workers")
    return found


def unregister_servers(url: str) -> None:
    """Let the router forget its servers: slime leaves those that it has not started registered."""
    for worker in requests.get(url, timeout=60).json()["workers"]:
        requests.delete(f"{url}/{worker['id']}", timeout=60).raise_for_status()
    deadline = time.monotonic() + 60
    while requests.get(url, timeout=60).json()["workers"]:  # the router removes them later
        assert time.monotonic() < deadline, f"{url} still lists servers"


def run(plans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hook = {"worker_process_setup_hook": "in_workers.use_cpu"}
    ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env=hook)
    found = [each for plan in plans for each in roll_out(plan)]
    ray.shutdown()
    return found


if __name__ == "__main__":
    print("FOUND " + json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
