"""Experiment trackers: a failing, slow or blocked one costs the run nothing; a resumed run keeps its id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hone.train.errors import TrainError
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import MetricsSettings
from hone.train.sinks import process
from hone.train.sinks.process import WORKER, ProcessSink, open_sinks
from hone.utils import processes
from tests.waiting import LIMIT_S

FAKE_WANDB = """
import json, os
class Run:
    def __init__(self, kw): self.out = open(os.environ["FAKE_OUT"], "a"); self.say("init", kw)
    def say(self, *what): print(json.dumps(what), file=self.out, flush=True)
    def define_metric(self, name, **kw): self.say("define", name, kw)
    def log(self, metrics): self.say("log", metrics)
    def finish(self): self.say("finish")
def Settings(**kw): return kw
def init(**kw):
    if os.environ.get("FAKE_FAILS"): raise OSError("the network is down")
    return Run(kw)
"""


def sink(folder: Path, warnings: list[str], command: Sequence[str] = WORKER, **more: float) -> ProcessSink:
    options = {"tracker": "wandb", "project": "p", "run_name": "r", "offline": True, "config": {"seed": 1}}
    return ProcessSink({**options, "folder": str(folder)}, warnings.append, command=command, **more)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `import wandb` a recorder of calls in new processes; return the file of the calls."""
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    monkeypatch.setenv("FAKE_OUT", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_resumed_run_continues_the_same_remote_run(tmp_path: Path, fake: Path) -> None:
    warnings: list[str] = []
    for first in (0, 2):
        with MetricsWriter(tmp_path, tensorboard=False, sinks=[sink(tmp_path / "s", warnings)]) as writer:
            for step in (first, first + 1):
                writer.write(step, {"loss": 0.5, "odd": float("nan")})
            writer.write(first, {"n": 3}, kind="validation")
    assert warnings == []
    calls = [json.loads(line) for line in fake.read_text().splitlines()]
    starts = [call[1] for call in calls if call[0] == "init"]
    assert starts[0] == starts[1]
    assert starts[0]["id"] == json.loads((tmp_path / "s" / "run.json").read_text())["id"]
    assert starts[0] | {"id": 0} == {
        "project": "p",
        "name": "r",
        "id": 0,
        "resume": "allow",
        "dir": str(tmp_path / "s"),
        "config": {"seed": 1},
        "mode": "offline",
        "settings": {"console": "off", "silent": True, "init_timeout": 30.0},
    }
    logged = [call[1] for call in calls if call[0] == "log"]
    assert logged == [
        {"train/step": 0, "train/loss": 0.5},
        {"train/step": 1, "train/loss": 0.5},
        {"validation/step": 0, "validation/n": 3},
        {"train/step": 2, "train/loss": 0.5},
        {"train/step": 3, "train/loss": 0.5},
        {"validation/step": 2, "validation/n": 3},
    ]
    assert [call[0] for call in calls].count("finish") == 2
    assert [record["step"] for record in read_metrics(tmp_path)] == [0, 1, 2, 3]


def test_tracker_that_cannot_start_warns_once(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "1")
    warnings: list[str] = []
    failing = sink(tmp_path / "s", warnings)
    failing.write("train", 0, {"loss": 1.0})
    failing.close()
    (warning,) = warnings
    log = tmp_path / "s" / "output.log"
    assert f"wandb: OSError: the network is down (log: {log}). The run continues" in warning
    assert warning.endswith("The run continues, and metrics.jsonl has all metrics.")


def test_records_after_a_tracker_died_are_counted(tmp_path: Path) -> None:
    warnings: list[str] = []
    dead = sink(tmp_path, warnings, python("input(); print('gone'); raise SystemExit(3)"))
    dead._process.wait()
    dead.write("train", 0, {"loss": 1.0})
    dead._thread.join()
    for step in range(1, 5):
        dead.write("train", step, {"loss": 1.0})
    dead.close()
    assert len(warnings) == 2
    assert "reach wandb: gone (log: " in warnings[0]
    assert warnings[1] == "wandb lacks at least 4 of 5 records"


def test_blocked_tracker_slows_nothing_and_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "QUEUE", 10)
    warnings: list[str] = []
    command = python("import time; time.sleep(9999)")
    blocked = sink(tmp_path, warnings, command, close_timeout_s=0.1)
    wide = {f"metric {i}": 1.0 for i in range(2000)}  # more than a pipe holds
    for step in range(40):
        blocked.write("train", step, wide)
    blocked.close()
    assert len(warnings) == 2
    assert "it takes metrics more slowly than the run makes them" in warnings[0]
    assert warnings[1].endswith(" of 40 records")
    assert not processes.exists(blocked._process.pid)
    assert not blocked._thread.is_alive()


def test_missing_package_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        TrainError, match=r"metrics.sinks has mlflow, which is not installed: pip install 'hone"
    ):
        open_sinks(MetricsSettings(sinks=("mlflow",)), tmp_path, {}, print)
    assert open_sinks(MetricsSettings(), tmp_path, {}, print) == []


def test_tracker_has_a_folder_of_its_own_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(process, "ProcessSink", lambda options, warn: options)
    monkeypatch.chdir(tmp_path)
    settings = MetricsSettings(sinks=("wandb", "mlflow"), project="p", offline=True)
    common = {"project": "p", "run_name": "run", "offline": True, "config": {"seed": 1}}
    assert open_sinks(settings, Path("run"), {"seed": 1}, print) == [
        {"tracker": name, "folder": str(tmp_path / "run" / "sinks" / name), **common}
        for name in ("wandb", "mlflow")
    ]


@pytest.mark.full
@pytest.mark.parametrize("tracker", ["wandb", "trackio", "mlflow"])
def test_real_tracker_takes_a_run_and_its_continuation(
    tmp_path: Path, tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = os.environ.get("HONE_TRACKERS_PYTHON")
    if interpreter is None:
        pytest.skip("HONE_TRACKERS_PYTHON names no interpreter that has wandb, trackio and mlflow")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    warnings: list[str] = []
    command = (interpreter, *WORKER[1:])
    options = {"tracker": tracker, "project": "hone", "run_name": "r", "offline": True, "config": {"seed": 1}}
    for first in (0, 1):
        with MetricsWriter(
            tmp_path,
            tensorboard=False,
            sinks=[ProcessSink({**options, "folder": str(tmp_path / "s")}, warnings.append, command=command)],
        ) as writer:
            writer.write(first, {"loss": 1.0, "outcome/no_patch": 3, "odd": float("inf")})
            writer.write(first, {"resolve_rate": 0.5}, kind="validation")
    assert warnings == []
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    if tracker == "mlflow":
        (loss,) = [path for path in files if path.parts[-2:] == ("train", "loss")]
        assert [line.split()[1:] for line in loss.read_text().splitlines()] == [["1.0", "0"], ["1.0", "1"]]
    elif tracker == "wandb":
        run_id = json.loads((tmp_path / "s" / "run.json").read_text())["id"]
        assert len([path for path in files if path.name == f"run-{run_id}.wandb"]) == 2
    else:
        assert "hone.db" in {path.name for path in files}


BLOCKED = """
import threading
from hone.train.sinks import worker
class Blocked:
    def __init__(self, options): pass
    def write(self, *record): threading.Event().wait()
worker.TRACKERS["blocked"] = Blocked
worker.main(close_s=1)
"""


def test_tracker_that_blocks_ends_after_its_run_was_killed() -> None:
    """A killed run leaves it the end of its input."""
    records = ['{"tracker": "blocked"}', '{"kind": "train", "step": 0, "metrics": {}}']
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], input="\n".join(records), text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == -signal.SIGALRM
