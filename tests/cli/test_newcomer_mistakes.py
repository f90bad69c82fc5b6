"""Fifteen mistakes of a newcomer: each is one sentence with advice, which docs/09-errors.md lists."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hone.cli.errors import explain
from hone.config import resolve
from hone.launch.rundir import claim
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny, make_tokenizer
from hone.tasks.formats import save
from hone.train.checkpoint import read_state
from hone.train.errors import CheckpointError
from tests.cli.in_process import hone
from tests.grading.calc import git
from tests.rollout.real import tasks
from tests.services.process import require

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "09-errors.md"
MODEL = {  # config.json of a model without weights, which a plan reads
    "model_type": "qwen3",
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}

TINY = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate_size": 64}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe in the current directory, which is new, with a folder that describes a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    path = Path("mine.toml")
    path.write_text('[model]\npath = "model"\n[agent]\nprompts = "tiny"\n[tasks]\ntrain = 4\ntest = 2\n')
    return path


def documented(mistake: str, done: subprocess.CompletedProcess[str], **replaced: object) -> None:
    """Require one sentence on stderr, which the page lists with its exit code.

    `replaced`: name -> text of this machine, which the page shows as that name in capitals.
    """
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    assert lines, done
    sentence = lines[-1]
    assert sentence.startswith(("hone: ", "install: ", "Stopped")), done.stderr
    for name, text in replaced.items():
        sentence = sentence.replace(str(text), name.upper())
    sentence = re.sub(r"\d+ GiB", "N GiB", sentence)
    row = f"| {mistake} | `` {sentence} `` | {done.returncode} |"
    assert row in PAGE.read_text().splitlines(), f"docs/09-errors.md lacks this row:\n{row}"


def explained(error: Exception) -> subprocess.CompletedProcess[str]:
    """Return what a command prints that this error ends."""
    failure = explain(error)
    return subprocess.CompletedProcess([], failure.exit_code, "", f"hone: {failure.sentence}\n")


def test_wrong_model_path_leaves_the_run_directory_unclaimed(recipe: Path):
    done = hone("train", recipe, "--set", "model.path=models/qwen/8b")
    documented("wrong model path", done)
    assert not Path("runs").exists()


@pytest.mark.full
@pytest.mark.model
@pytest.mark.sandbox
def test_failed_start_leaves_the_directory_to_the_corrected_recipe(recipe: Path):
    make_tiny([task.problem for task in tasks(4)], Path("tiny"), TinyModelSettings(**TINY))
    shared = ["--set", "model.path=tiny", "--set", "groups_per_step=1", "--set", "train.steps=2"]
    shared += [
        "--set",
        "rollout.group_size=2",
        "--set",
        "agent.turn_limit=1",
        "--set",
        "sampling.max_tokens=16",
    ]
    gone = ["--set", "engine.kind=vllm", "--set", 'engine.urls=["http://127.0.0.1:9"]']
    assert "no engine answers at http://127.0.0.1:9" in hone("train", recipe, *shared, *gone).stderr
    assert not Path("runs/mine/config.toml").exists()
    corrected = hone("train", recipe, *shared)
    assert Path("runs/mine/config.toml").exists()
    assert corrected.returncode == 1  # so small a model resolves nothing
    assert "nothing was learnt: none of the 2 steps in runs/mine changed a weight" in corrected.stderr
    assert hone("train", recipe, *shared).stderr.splitlines()[-1] == corrected.stderr.splitlines()[-1]


def test_recipe_that_needs_a_gpu_says_what_the_machine_has(recipe: Path):
    documented("no GPU where the recipe needs one", hone("train", recipe, "--set", "placement.trainer=[0]"))


@pytest.mark.slow
def test_prompt_above_the_context_is_said_before_the_run(recipe: Path):
    tokenizer = make_tokenizer([task.problem for task in tasks(4)], TinyModelSettings(vocab_size=400))
    tokenizer.save_pretrained("model")
    sets = ("--set", "engine.context_tokens=20", "--set", "sampling.max_tokens=10")
    done = hone("train", recipe, *sets)
    documented("prompt above the context", done, longest=re.findall(r"at least (\d+) tokens", done.stderr)[0])
    planned = hone("train", recipe, *sets, "--dry-run")
    assert "Does not fit: the first prompt of any task does not fit" in " ".join(planned.stdout.split())
    assert not Path("runs").exists()


def test_task_without_tests_is_named(recipe: Path):
    (task,) = tasks(1)
    save(
        [dataclasses.replace(task, checks=dataclasses.replace(task.checks, fail_to_pass=()))], Path("t.jsonl")
    )
    done = hone("eval", "--agent", "noop", "--tasks", "t.jsonl", "-o", "out")
    documented("task without tests", done, task=task.id)


class NotFound(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@contextmanager
def wrong_server() -> Generator[str]:
    """Serve HTTP 404 for every address; yield the server's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), NotFound)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_engine_that_answers_404_is_no_model_server(recipe: Path):
    save(tasks(1), Path("tasks.jsonl"))
    with wrong_server() as url:
        done = hone("eval", "--agent", "bash", "--engine", url, "--tasks", "tasks.jsonl", "-o", "out")
        documented("engine answers 404", done, url=url)
    assert not Path("out").exists()


def test_taken_port_is_named(recipe: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        documented("port is taken", hone("node", "--port", port), port=port)


@pytest.mark.full
@pytest.mark.sandbox
def test_full_disk_during_an_evaluation_keeps_the_results(recipe: Path, tmp_path: Path):
    require()
    save(tasks(4), Path("tasks.jsonl"))
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k,mode=0700", "none", str(disk)], check=True)
    arguments = (
        "eval",
        "--agent",
        "noop",
        "--tasks",
        "tasks.jsonl",
        "-o",
        disk / "out",
        "--concurrency",
        "1",
    )
    arguments += ("--set", "agent.prompts=tiny", "--set", "sandbox.memory_mib=512")
    try:
        done = hone(*arguments)
        written = re.findall(r"the disk is full \((\S+)\)", done.stderr)[0]
        documented("disk full during an evaluation", done, path=written)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert hone(*arguments, "--resume").returncode == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_wrong_python_stops_the_installation(tmp_path: Path):
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(REPOSITORY / name, tmp_path)
    done = subprocess.run(
        ["bash", "scripts/install.sh"],
        env={**os.environ, "PYTHON": "/usr/bin/python2"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    documented("wrong `PYTHON` for `make install`", done)
    assert not (tmp_path / ".venv").exists()


def test_agent_whose_package_is_missing_is_said_before_the_run(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "hone.config.plan.find_spec", lambda name: None if name == "minisweagent" else real(name)
    )
    sets = ("--set", "agent.kind=mini-swe-agent", "--set", "agent.prompts=default")
    documented("agent whose package is missing", hone("train", recipe, *sets))


def test_recipe_of_another_run_names_the_keys(recipe: Path):
    claim(resolve(recipe, ["train.optimizer.lr=3e-5"]))
    done = hone("train", recipe, "--set", "train.optimizer.lr=1e-5", "--set", "groups_per_step=4")
    documented("recipe of another run", done)


def test_model_of_the_hub_without_network_says_how_to_copy_it(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "CACHE")
    done = hone("train", recipe, "--set", "model.path=someone/no-such-model")
    documented("model of the hub, without network", done, hub="http://127.0.0.1:9")


def test_tests_with_other_names_must_be_named(recipe: Path):
    project = Path("project")
    project.mkdir()
    (project / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (project / "checks.py").write_text(
        "import unittest\n\nclass Add(unittest.TestCase):\n    def test_add(self):\n        pass\n"
    )
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "First")
    git(project, "commit", "-qm", "Second", "--allow-empty")
    documented("tests of unittest with other names", hone("tasks", "mine", project, "-o", "tasks.jsonl"))
    assert not list(Path().glob("tasks.jsonl*"))


@pytest.mark.parametrize(
    ("mistake", "arguments"),
    [
        ("URL instead of a recipe", ["train", "https://example.org/r.toml"]),
        ("URL instead of a model", ["train", "mine.toml", "--set", "model.path=https://example.org/m"]),
        ("URL instead of a repository", ["tasks", "mine", "https://example.org/project", "-o", "t.jsonl"]),
    ],
)
def test_url_instead_of_a_path_is_recognised(recipe: Path, mistake: str, arguments: list[str]):
    documented(mistake, hone(*arguments))


def test_checkpoint_of_an_earlier_version_is_named(recipe: Path):
    old = Path("runs/old/checkpoints/step-000003")
    old.mkdir(parents=True)
    (old / "progress.json").write_text('{"format": 1, "step": 3}')
    with pytest.raises(CheckpointError) as refused:
        read_state(old)
    documented("checkpoint of an earlier version", explained(refused.value))


def test_ledger_of_an_earlier_version_is_named(recipe: Path):
    run = Path("runs/old")
    run.mkdir(parents=True)
    (run / "config.toml").write_text(recipe.read_text())
    database = sqlite3.connect(run / "ledger.sqlite")
    database.execute("PRAGMA user_version = 1")
    database.close()
    documented("run of an earlier version", hone("show", run))


STUBBORN = """
import sys, time
from hone.cli import app
from hone.cli.options import run_with_progress

def job(reporter):
    while True:
        try:
            print("ready", flush=True)
            time.sleep(600)
        except BaseException:
            continue

sys.argv = ["hone", "train", "mine.toml"]
app.app = lambda **_: run_with_progress(job)
sys.exit(app.main())
"""


@pytest.mark.slow
def test_second_interrupt_stops_at_once():
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert any(line.startswith("Stopping") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    documented("Ctrl-C twice", subprocess.CompletedProcess([], process.returncode, "", err))
