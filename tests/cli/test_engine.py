"""`hone engine serve`, with a toy for a server."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hone.policy.tiny import make_tokenizer
from tests.cli.in_process import hone
from tests.policy.conftest import SETTINGS, TEXTS
from tests.policy.engines.test_managed import pids, toy_python, wait_until_gone
from tests.services.process import reserve_port

pytestmark = pytest.mark.model  # by the time it takes
HONE = str(Path(sys.executable).with_name("hone"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    make_tokenizer(TEXTS, SETTINGS).save_pretrained(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 100, "model_type": "qwen3"}')
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return toy_python(tmp_path / "python")


@pytest.fixture
def port() -> int:
    return reserve_port()


def words(model: Path, python: Path, port: int, *more: str) -> list[str]:
    given = ["--kind", "sglang", "--port", str(port), "--python", str(python)]
    return [HONE, "engine", "serve", str(model), *given, *more]


def test_serve_prints_address_and_stops_on_ctrl_c(
    model: Path, python: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    process = subprocess.Popen(words(model, python, port), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while "engine.context_tokens" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        processes = pids(model)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    flat = re.sub(r"\s+", " ", said)
    assert f"http://127.0.0.1:{port} serves {model}" in flat
    assert f"--set engine.kind=sglang --set 'engine.urls=[\"http://127.0.0.1:{port}\"]'" in flat
    assert "--set engine.context_tokens=100" in flat
    assert "Stopped." in rest
    wait_until_gone(processes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            "taken",
            r"hone: port \d+ of 127.0.0.1 cannot be used \(Address already in use\): .*--port",
            marks=pytest.mark.full,
        ),
        ("nowhere", "hone: there is no model folder"),
        ("bare", "hone: sglang is not installed for"),
        pytest.param(
            "broken",
            r"hone: sglang server ended with exit code 1: what a model \(log: ",
            marks=pytest.mark.full,
        ),
    ],
)
def test_failed_start_is_one_sentence(
    model: Path, python: Path, port: int, change: str, said: str, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if change == "broken":
        (model / "fail").write_text("what a model")
    if change == "bare":
        python.write_text("#!/bin/sh\nexit 1\n")
    with socket.socket() as holder:
        if change == "taken":
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
        _, *arguments = words(tmp_path / "nowhere" if change == "nowhere" else model, python, port)
        done = hone(*arguments)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(said, last), done.stderr
