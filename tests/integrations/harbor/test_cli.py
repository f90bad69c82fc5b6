"""`hone tasks import harbor` and `hone tasks export --format harbor` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

from hone.tasks.harbor.folder import read_folder
from tests.cli.in_process import hone
from tests.integrations.harbor.folders import folders, write_all


def test_folders_are_imported_and_exported_again(tmp_path: Path) -> None:
    write_all(tmp_path / "in")
    done = hone("tasks", "import", "harbor", tmp_path / "in", "-o", tmp_path / "tasks.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'tasks.jsonl'}: 20 tasks; 0 rows refused, 0 repeated.\n"
    out = hone("tasks", "export", tmp_path / "tasks.jsonl", "--format", "harbor", "-o", tmp_path / "out")
    assert out.stdout == f"{tmp_path / 'out'}: 20 folders.\n"
    assert read_folder(tmp_path / "out" / "hone__steps-mean") == folders()["steps-mean"]


def test_refused_folder_is_named_with_its_reason(tmp_path: Path) -> None:
    write_all(tmp_path, {"gpu": folders()["shell-answer"], "good": folders()["shell-append"]})
    config = tmp_path / "gpu" / "task.toml"
    config.write_text(config.read_text().replace('workdir = "/app"', 'workdir = "/app"\ngpus = 8'))
    done = hone("tasks", "import", tmp_path, "--format", "harbor", "--report", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["tasks"]) == (0, 1)
    assert report["refused"][0]["reason"] == "its environment needs GPUs, which Hone's sandboxes do not have"


def test_format_is_given_once(tmp_path: Path) -> None:
    done = hone("tasks", "import", "harbor", tmp_path, "--format", "harbor", "-o", tmp_path / "x.jsonl")
    assert done.returncode == 2
    assert "at most one format" in done.stderr
