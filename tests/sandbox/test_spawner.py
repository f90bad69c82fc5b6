"""No message ends the spawn server: what it cannot start is reported, and its other sandboxes go on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.sandbox import Limits, SandboxSpec, make_provider
from hone.sandbox.contract import LIMIT_BOUNDS
from hone.sandbox.init.in_sandbox import files
from hone.sandbox.namespaces import spawner
from hone.sandbox.settings import SandboxSettings

_WAIT_S = 20.0
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def control() -> Iterator[socket.socket]:
    """Return the control socket of a spawn server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", spawner.__name__, f"test-{os.getpid()}", str(os.getpid())]
    with theirs:
        process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=subprocess.DEVNULL)
    ours.settimeout(_WAIT_S)
    assert "roots" in json.loads(ours.recv(1 << 16))
    yield ours
    ours.close()
    assert process.wait(_WAIT_S) == 0


@contextmanager
def _descriptors() -> Iterator[list[int]]:
    pairs = [socket.socketpair() for _ in range(2)]
    yield [end.fileno() for end, _ in pairs]
    for end in [end for pair in pairs for end in pair]:
        end.close()


def _report(control: socket.socket, sandbox: str) -> str:
    """Return the error that the server reports of a sandbox; it reports one of any that it does not have."""
    while True:
        event = json.loads(control.recv(1 << 17))
        if event["id"] == sandbox:
            return event["error"]


def _is_serving(control: socket.socket) -> bool:
    control.send(json.dumps({"op": "close", "id": "unknown"}).encode())
    return _report(control, "unknown") == "its plan did not arrive"


@pytest.mark.sandbox
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=st.binary(min_size=1, max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_no_message_ends_the_spawn_server(control: socket.socket, message: bytes) -> None:
    with _descriptors() as fds:
        socket.send_fds(control, [message], fds)
    assert _is_serving(control)


@pytest.mark.sandbox
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=st.dictionaries(st.sampled_from(["base", "workdir", "copied", "mounts", "sockets", "limits",
                                                "cores", "init", "bwrap", "made_ns", "snapshot"]),
                               _JSON, min_size=1))  # fmt: skip
def test_no_plan_ends_the_spawn_server(control: socket.socket, changed: dict[str, Any]) -> None:
    plan = {"id": "p", "owner": "o", "bwrap": "/nonexistent", "base": {}, "workdir": "/w", "mounts": [],
            "sockets": [], "limits": {}, "cores": 0, "init": [], "made_ns": 0} | changed  # fmt: skip
    with _descriptors() as fds:
        socket.send_fds(control, [json.dumps({"op": "start", "plan": plan}).encode()], fds)
    assert _is_serving(control)


@pytest.mark.sandbox
def test_a_cut_plan_is_refused(control: socket.socket) -> None:
    """The control: the same message, whole, is a plan whose start fails with its own error."""
    plan = {"id": "p", "owner": "o", "bwrap": "/nonexistent", "workdir": "/w", "mounts": [], "sockets": [],
            "limits": {}, "cores": 0, "init": [], "made_ns": 0, "base": {
                "name": "n", "uid": 0, "gid": 0, "env": {}, "workdir": "", "directories": [], "links": {},
                "files": {}, "overlays": [], "shown": []}}  # fmt: skip
    message = json.dumps({"op": "start", "plan": plan}).encode()
    for part in (message[:-40], message):
        with _descriptors() as fds:
            socket.send_fds(control, [part], fds)
        control.send(json.dumps({"op": "close", "id": "p"}).encode())
        whole = part is message
        assert (_report(control, "p") == "its plan did not arrive") is not whole
    assert _is_serving(control)


@given(name=st.sampled_from(sorted(LIMIT_BOUNDS)), value=st.floats() | st.integers())
def test_limits_are_finite(name: str, value: float) -> None:
    low, high = LIMIT_BOUNDS[name]
    if low <= value <= high:
        assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]
    else:
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})  # type: ignore[arg-type]


def test_deep_directories_are_made_without_recursion(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/a" * 1500
    files.make_directories(path)
    assert Path(os.fsdecode(path)).is_dir()
    subprocess.run(["rm", "-r", tmp_path / "a"], check=True)  # deeper than pytest itself can remove


@pytest.mark.sandbox
def test_timeouts_are_finite(tmp_path: Path) -> None:
    async def run() -> None:
        own = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with make_provider(own) as provider, await provider.start(SandboxSpec()) as sandbox:
            for timeout_s in (float("inf"), float("nan"), 1e300, -1.0, 0.0):
                with pytest.raises(ValueError, match="timeout_s"):
                    await sandbox.exec("true", timeout_s=timeout_s)
            assert (await sandbox.exec("true", timeout_s=604_800)).exit_code == 0

    asyncio.run(run())
