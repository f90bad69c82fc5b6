"""kill -9 of the Docker engine below a node in the middle of every call."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox.settings import SandboxSettings
from hone.utils.processes import start_time
from tests.chaos.stack import CALLS, Stack, stack
from tests.services.engines import Engine, docker_engine
from tests.services.image import BASE_IMAGE, base_archive
from tests.services.process import require, service_folder
from tests.waiting import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.full]


class Dockerd:
    """An engine that is killed and started again over the same data."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.start()

    def start(self) -> None:
        self.engine: Engine = self._stack.enter_context(docker_engine(self._folder))

    def pid(self) -> int:
        return self.engine.service.process.pid

    def kill(self) -> None:
        """kill -9 of the daemon, and by it of its containerd; what keeps the containers lives on."""
        os.kill(self.pid(), signal.SIGKILL)
        self.engine.service.process.wait()
        record = self._folder / "exec" / "containerd" / "containerd.pid"
        containerd = int(record.read_text())
        wait_until(lambda: start_time(containerd) is None, lambda: "containerd lives on")
        record.unlink()  # a daemon takes a process that nobody has reaped for a living one

    def containers(self) -> list[str]:
        """Those that it finds: killed in the middle of a removal it may list one that it does not."""
        with self.engine.client() as client:
            return [
                f"container {one['Names']} {one['Status']} {one['Labels']}"
                for one in client.get("/containers/json?all=1").json()
                if one["Names"] or client.get(f"/containers/{one['Id']}/json").status_code != 404
            ]


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    require("dockerd")
    with service_folder() as folder, contextlib.ExitStack() as stack:
        dockerd = Dockerd(folder, stack)
        dockerd.engine.load(base_archive())
        repository, tag = SandboxSettings().docker_image.split(":")  # which stands for the image `host`
        with dockerd.engine.client() as client:
            client.post(f"/images/{BASE_IMAGE}/tag?repo={repository}&tag={tag}").raise_for_status()
        yield dockerd


@pytest.fixture(scope="module")
def floor(dockerd: Dockerd) -> Iterator[Stack]:
    environment = {"DOCKER_HOST": dockerd.engine.url}
    with stack(provider="docker", queue_s=10.0, prepare=lambda folder: environment) as made:
        made.engine, made.others = dockerd.pid, dockerd.containers
        yield made


@pytest.mark.parametrize("call", CALLS[::-1])  # a failed start keeps the node out of use for a while
def test_killed_engine_ends_calls_with_typed_error(floor: Stack, dockerd: Dockerd, call: str) -> None:
    with floor.caught(call) as (client, _):
        dockerd.kill()
        if call == "close":  # it goes on until the engine confirms
            dockerd.start()
            assert client.ended().raised == []
        else:
            ended = client.ended()
            assert "SandboxError" in ended.raised, ended
            dockerd.start()
        client.leave()
    floor.assert_healed()
    wait_until(floor.node.is_well, floor.log)
