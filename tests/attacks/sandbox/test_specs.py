"""Specs made to bring a node down: each gets a typed error, and the node starts the next sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from hone.sandbox import Limits, Mount, Provider, SandboxError, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.utils.http_client import bearer
from tests.sandbox.node.served import TOKEN, served

LONG = "/" + "/".join(["d" * 200] * 750)  # 150 kB
# JSON as an attacker writes it: Python's own encoder would refuse some
HOSTILE = {
    "infinite cpus": '{"spec": {"limits": {"cpus": Infinity}}}',
    "cpus that are no number": '{"spec": {"limits": {"cpus": NaN}}}',
    "cpus beyond every quota": '{"spec": {"limits": {"cpus": 1e300}}}',
    "cpus below every quota": '{"spec": {"limits": {"cpus": 1e-300}}}',
    "memory of 4,000 digits": '{"spec": {"limits": {"memory_mib": 1%s}}}' % ("0" * 4000),
    "memory of 64 bits": '{"spec": {"limits": {"memory_mib": 18446744073709551615}}}',
    "negative memory": '{"spec": {"limits": {"memory_mib": -1}}}',
    "processes beyond the kernel": '{"spec": {"limits": {"pids": 4194304}}}',
    "disk of 64 bits": '{"spec": {"limits": {"disk_mib": 9223372036854775807}}}',
    "output beyond a frame": '{"spec": {"limits": {"output_kib": 4194304}}}',
    "working directory of 150 kB": json.dumps({"spec": {"workdir": LONG}}),
    "working directory of wide characters": json.dumps({"spec": {"workdir": "/" + "\U0001f9ea" * 4000}}),
    "null byte": json.dumps({"spec": {"workdir": "/a\0b"}}),
    "lone surrogate": '{"spec": {"workdir": "/\\ud800"}}',
    "name of 300 characters": json.dumps({"spec": {"workdir": "/" + "n" * 300}}),
    "many hosts": json.dumps({"spec": {"network": ["a:1"] * 100_000}}),
    "many variables": json.dumps({"spec": {"env": {str(n): "" for n in range(50_000)}}}),
    "image of 100 kB": json.dumps({"spec": {"image": "docker://" + "i" * 100_000}}),
    "infinite time to live": '{"spec": {}, "ttl_s": Infinity}',
    "generation of 4,000 digits": '{"spec": {}, "generation": 1%s}' % ("0" * 4000),
}


def test_hostile_specs_leave_the_node_serving(tmp_path: Path) -> None:
    async def run() -> None:
        settings = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with (
            served(make_provider(settings), tmp_path / "node") as url,
            aiohttp.ClientSession(headers=bearer(TOKEN)) as session,
        ):

            async def create(body: str) -> tuple[int, str]:
                async with session.post(f"{url}/v1/sandboxes", data=body) as response:
                    return response.status, (await response.json()).get("code", "")

            for name, body in HOSTILE.items():
                status, code = await create(body)
                assert status in (400, 503), (name, status, code)
                assert await create('{"spec": {}}') == (200, ""), f"after {name}"

    asyncio.run(run())


def test_hostile_specs_leave_the_provider_starting(tmp_path: Path) -> None:
    """What no wire carries: specs of this process."""
    mounts = tuple(Mount(source=tmp_path, target=f"/{'m' * 200}/{'m' * 200}/{n}") for n in range(400))
    hostile = [
        SandboxSpec(workdir=LONG),
        SandboxSpec(workdir="/\ud800"),
        SandboxSpec(workdir="/a\0b"),
        SandboxSpec(workdir="/" + "n" * 300),
        SandboxSpec(mounts=mounts),
        SandboxSpec(mounts=(Mount(source=Path("/proc/self/status"), target="/status"),)),
    ]

    async def refused(provider: Provider, spec: SandboxSpec) -> None:
        with pytest.raises((SandboxError, ValueError, OSError)):
            await provider.start(spec)
        async with await provider.start(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["/bin/echo", "here"])).text == "here\n"

    async def run() -> None:
        settings = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with make_provider(settings) as provider:
            for spec in hostile:
                await refused(provider, spec)
            largest = Limits(memory_mib=1 << 24, pids=(1 << 22) - 2, cpus=8192, disk_mib=256, output_kib=8192)
            small = Limits(memory_mib=32, pids=8, cpus=0.2, disk_mib=2, output_kib=1)
            for limits in (largest, small):  # the honest control
                async with await provider.start(SandboxSpec(limits=limits)) as sandbox:
                    assert (await sandbox.exec("seq 10000", timeout_s=60)).exit_code == 0

    asyncio.run(run())
