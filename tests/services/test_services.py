"""The services that other tests rely on start, hold the base image, run it and leave nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.sandbox.ordinary_user import run_as_ordinary_user
from tests.services.conda import write_layer
from tests.services.engines import docker_engine, podman_engine
from tests.services.image import BASE_IMAGE, base_archive, write_archive
from tests.services.process import ServiceFailed, control_groups, require, running, service_folder
from tests.services.registry import image_registry
from tests.waiting import wait_until

pytestmark = pytest.mark.sandbox
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts services")
ROOT = str(Path(__file__).parents[2])
ENGINES = [docker_engine, podman_engine]
PROBE = (
    "set -e; cd /tmp; git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x;"
    "echo 'def test_x(): assert 1' > test_x.py; python3 -m pytest -q; pytest -q;"
    "python -c 'import ssl, sqlite3'; ps aux | wc -l; echo all well"
)


def start(client: httpx.Client, command: list[str]) -> str:
    host = {"NetworkMode": "none", "Memory": 256 << 20, "PidsLimit": 64}
    config = {"Image": BASE_IMAGE, "Cmd": command, "HostConfig": host, "Tty": True}
    answer = client.post("/containers/create", json=config)
    assert answer.is_success, answer.text
    container = answer.json()["Id"]
    started = client.post(f"/containers/{container}/start")
    assert started.is_success, started.text
    return container


def traces(folder: Path) -> list[Any]:
    """Processes, mounts, control groups and files of a service's folder."""
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    left = [text for text in commands + mounts if folder.name in text] + control_groups(folder.name)
    return left + ([folder] if folder.exists() else [])


def has_ended(process: psutil.Process) -> bool:
    """Also while it is a zombie, which process 1 may reap late."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # reaped in between
        return True


@pytest.mark.full
@pytest.mark.parametrize("make", ENGINES)
def test_an_engine_runs_the_base_image(make: Any) -> None:
    with make() as engine:
        engine.load(base_archive())
        with engine.client() as client:
            container = start(client, ["bash", "-c", PROBE])
            assert client.post(f"/containers/{container}/wait").json()["StatusCode"] == 0
            logs = client.get(f"/containers/{container}/logs?stdout=1&stderr=1").text
    assert logs.count("1 passed") == 2
    assert "all well" in logs


@pytest.mark.full
@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_leaves_nothing_though_a_container_runs(make: Any, end: signal.Signals) -> None:
    with make() as engine:
        engine.load(base_archive())
        with engine.client() as client:
            container = start(client, ["sleep", "12345"])
            inspected = client.get(f"/containers/{container}/json").json()
        sleeper = psutil.Process(inspected["State"]["Pid"])
        # an engine answers before it has executed it
        wait_until(lambda: sleeper.cmdline() == ["sleep", "12345"])
        engine.service.process.send_signal(end)
    assert has_ended(sleeper)
    assert traces(engine.service.folder) == []
    assert control_groups(container) == []


def test_an_image_goes_into_the_registry_and_out(tmp_path: Path) -> None:
    (tmp_path / "layer" / "srv").mkdir(parents=True)
    (tmp_path / "layer" / "srv" / "hello").write_text("hello")
    write_layer(tmp_path / "layer.tar", tmp_path / "layer")
    write_archive(
        tmp_path / "x.tar", "x:1", [tmp_path / "layer.tar"], {"WorkingDir": "/srv", "User": "nobody"}
    )
    with image_registry() as registry:
        full = registry.push(tmp_path / "x.tar", "team/x:1")
        command = ["skopeo", "inspect", "--config", "--tls-verify=false", f"docker://{full}"]
        inspected = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    config = json.loads(inspected)["config"]
    assert (config["WorkingDir"], config["User"]) == ("/srv", "nobody")
    assert traces(registry.service.folder) == []


@as_root
@pytest.mark.parametrize(("ci", "ends_as"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_program_fails_tests_in_ci_and_skips_them_elsewhere(
    ci: str, ends_as: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends_as, match=r"no-such-service is missing: run scripts/install-services\.sh"):
        require("bash", "no-such-service")


@as_root
def test_an_ordinary_users_tests_are_skipped() -> None:
    code = "import pytest; from tests.services.process import require\ntry: require('no-such-service')\n"
    code += "except pytest.skip.Exception as reason: print(reason)"
    done = run_as_ordinary_user([sys.executable, "-c", f"import sys; sys.path.insert(0, {ROOT!r})\n{code}"])
    assert done.stdout == "starting services needs root\n", done.stderr


def test_a_service_ends_with_tests_that_are_killed() -> None:
    code = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from tests.services.process import running, service_folder\n"
        "service = ['sh', '-c', 'touch up; exec sleep 12346']\n"
        "with service_folder() as folder, running(service, folder, (folder / 'up').exists) as service:\n"
        "    print(folder, service.process.pid, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as tests:
        folder, pid = tests.stdout.readline().split()
        service = psutil.Process(int(pid))
        tests.kill()
    wait_until(lambda: has_ended(service))
    assert sorted(path.name for path in Path(folder).iterdir()) == ["log", "up"]
    shutil.rmtree(folder)


def test_a_service_that_ends_at_once_is_told_with_its_log() -> None:
    command = ["bash", "-c", "echo no such thing; exit 3"]
    with (
        service_folder() as folder,
        pytest.raises(ServiceFailed, match="ended with 3:\nno such thing"),
        running(command, folder, lambda: False),
    ):
        pass
