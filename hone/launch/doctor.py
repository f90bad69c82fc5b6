"""Checks of a machine beside its sandboxes: Python packages, devices, memory, disk, programs and engines."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from hone.config import RunSettings
from hone.launch.engine import find_endpoint
from hone.policy.engine import EngineError
from hone.sandbox.contract import Check
from hone.utils.devices import DeviceError, Devices, find_devices, host_memory_gib
from hone.utils.files import default_cache_dir, nearest_existing

LITTLE_MEMORY_GIB = 4.0
LITTLE_DISK_GIB = 10.0
NO_DISK_GIB = 0.5
_DOCKER_SOCKET = "/var/run/docker.sock"
_ENGINES = {"vllm": "pip install vllm", "sglang": "pip install sglang"}


def machine_checks(run_dir: Path) -> list[Check]:
    """Return the checks of Python, torch, GPUs, memory and disk; `run_dir` is where a run would write."""
    try:
        devices: Devices | None = find_devices()
        gpus = _gpus(devices)
    except DeviceError as error:
        devices, gpus = None, _lack("GPU", str(error), "no run can use a GPU", "repair the driver")
    return [
        Check(name="Python", ok=True, detail=platform.python_version()),
        _torch(devices),
        gpus,
        _memory(host_memory_gib()),
        *(_disk(name, path) for name, path in (("runs", run_dir), ("cache", default_cache_dir()))),
    ]


def service_checks() -> list[Check]:
    """Return the checks of the programs and services that only some runs need."""
    return [
        _docker(),
        _program(
            "buildah", "tasks with a Dockerfile are built by Docker only", "apt-get install buildah runc"
        ),
        _program("skopeo", "no image can be fetched from a registry", "apt-get install skopeo"),
        _program("git", "no repository can be read", "apt-get install git", required=True),
        *(_package(name, install) for name, install in _ENGINES.items()),
    ]


def engine_checks(urls: Sequence[str]) -> Iterator[Check]:
    """Yield one check for each address of an engine server; each takes ten seconds at most."""
    for url in dict.fromkeys(urls):
        try:
            found = find_endpoint(url)
        except EngineError as error:
            yield Check(name="engine", ok=False, detail=str(error), effect="no run can sample from it")
            continue
        served = ", ".join(model.name for model in found.served) or "a list of models that is empty"
        yield Check(name="engine", ok=True, detail=f"{url}: {found.kind}, serves {served}")


def engine_urls(settings: RunSettings) -> list[str]:
    """Return the addresses of the servers that a recipe names: the policy's, the judge's, the teacher's."""
    others = (each.engine.addresses for each in settings.beside_policy("train").values())
    return [*settings.engine.addresses, *(url for urls in others for url in urls)]


def _lack(name: str, detail: str, effect: str, fix: str, *, required: bool = False) -> Check:
    return Check(name=name, ok=False, detail=detail, effect=effect, fix=fix, required=required)


def _gpus(devices: Devices) -> Check:
    if not devices.gpus:
        return _lack(
            "GPU",
            "none found (no nvidia-smi, or CUDA_VISIBLE_DEVICES hides them)",
            "policies below a billion parameters train and sample on the CPU; larger ones take hours a step",
            "use a machine with a GPU, or list servers on other machines in engine.urls",
        )
    names = ", ".join(
        f"{gpu.name} {gpu.free_gib:.0f} of {gpu.memory_gib:.0f} GiB free" for gpu in devices.gpus
    )
    return Check(name="GPU", ok=True, detail=names)


def _torch(devices: Devices | None) -> Check:
    """Check torch without loading it."""
    if importlib.util.find_spec("torch") is None:
        effect = "nothing trains here and no local engine samples; evaluation with a server and grading work"
        return _lack("torch", "not installed", effect, "pip install 'hone-rl[train]'")
    version = metadata.version("torch")
    if devices is not None and devices.gpus and "+cpu" in version:
        effect = "the trainer cannot use the GPUs of this machine"
        return _lack("torch", f"{version}, a build for the CPU", effect, "pip install torch", required=True)
    return Check(name="torch", ok=True, detail=version)


def _memory(gib: float) -> Check:
    detail = f"{gib:.0f} GiB, {os.cpu_count()} CPU cores"
    if gib >= LITTLE_MEMORY_GIB:
        return Check(name="memory", ok=True, detail=detail)
    fix = "lower rollout.concurrent_episodes and sandbox.memory_mib"
    return _lack("memory", detail, f"below {LITTLE_MEMORY_GIB:.0f} GiB only a few sandboxes run at once", fix)


def _disk(name: str, path: Path) -> Check:
    """Check the file system that holds, or would hold, `path`."""
    there = nearest_existing(path)
    gib = shutil.disk_usage(there).free / 2**30
    detail = f"{gib:.1f} GiB free at {there}"
    if gib >= LITTLE_DISK_GIB:
        return Check(name=f"disk: {name}", ok=True, detail=detail)
    effect = "checkpoints, images or rollouts will fill it; a run then stops and keeps what is written"
    fix = "free some space" + (
        ", or set run_dir to another disk" if name == "runs" else ", or XDG_CACHE_HOME"
    )
    return _lack(f"disk: {name}", detail, effect, fix, required=gib < NO_DISK_GIB)


def _docker() -> Check:
    address = os.environ.get("DOCKER_HOST") or f"unix://{_DOCKER_SOCKET}"
    effect = 'no sandbox.provider = "docker"; the other providers work'
    fix = "start the Docker engine, or set DOCKER_HOST"
    if not address.startswith("unix://"):
        return Check(name="docker", ok=True, detail=f"DOCKER_HOST = {address} (not tried)", required=False)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.removeprefix("unix://"))
    except OSError as error:
        return _lack("docker", f"no engine at {address} ({error.strerror})", effect, fix)
    return Check(name="docker", ok=True, detail=address, required=False)


def _program(name: str, effect: str, install: str, *, required: bool = False) -> Check:
    path = shutil.which(name)
    if path is None:
        return _lack(name, "not found on PATH", effect, install, required=required)
    return Check(name=name, ok=True, detail=path, required=required)


def _package(name: str, install: str) -> Check:
    if importlib.util.find_spec(name) is None:
        effect = f'no run starts servers with engine.kind = "{name}" here; engine.urls works'
        return _lack(name, "not installed", effect, install)
    return Check(name=name, ok=True, detail="installed", required=False)
