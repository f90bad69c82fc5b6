"""`hone trajectory export` and `import` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hone.launch.trajectories import Choice, export_rollouts
from hone.rollout.store import Store
from tests.cli.fake_run import make_run
from tests.cli.in_process import hone
from tests.rollout.test_store import assert_same, example
from tests.view.pages import read

ROLLOUTS = ["flat", "r00", "r01", "r10", "r11"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "small")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def documents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / name).read_bytes()) for name in names(folder)]


def test_every_rollout_is_a_file_named_by_its_id(run: Path, tmp_path: Path) -> None:
    done = hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}: 5 rollouts.\n")
    assert names(tmp_path / "out") == [f"{name}.json" for name in ROLLOUTS]
    assert "exporting" in done.stderr
    assert "5/5" in done.stderr


def test_default_directory_is_in_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    done = hone("trajectory", "export", "small", "--format", "hf")
    assert done.stdout == "runs/small/trajectories-hf: 5 rollouts.\n"
    assert names(run / "trajectories-hf") == [f"{name}.jsonl" for name in ROLLOUTS]
    assert hone("show", "small", "--json").returncode == 0


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--outcome", "resolved"], ["r00", "r10", "r11"]),
        (["--step", "1"], ["flat", "r10", "r11"]),
        (["--step", "1", "--outcome", "unresolved"], ["flat"]),
        (["--task", "train-0007"], ROLLOUTS),
    ],
)
def test_rollouts_are_chosen(run: Path, tmp_path: Path, options: list[str], chosen: list[str]) -> None:
    done = hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out", *options, "--json")
    assert json.loads(done.stdout) == {
        "out": str(tmp_path / "out"),
        "written": len(chosen),
        "without_times": 0,
    }
    assert names(tmp_path / "out") == [f"{name}.json" for name in chosen]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--outcome", "resolvd"], 2, "there is no outcome 'resolvd': did you mean resolved?"),
        (["--task", "other"], 1, "none of the 5 rollouts in"),
        (["--step", "9"], 1, "none of the 0 rollouts in"),
        (["--format", "otel"], 1, "no agent of the 5 chosen rollouts in"),
    ],
)
def test_nothing_to_write_is_one_sentence(
    run: Path, tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    done = hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert names(tmp_path) == ["runs"]  # nothing half-written stays


def test_existing_files_are_never_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    assert (done.returncode, names(tmp_path / "out")) == (1, ["mine.txt"])
    assert f"{tmp_path / 'out'} exists: choose a new directory" in done.stderr


def test_missing_run_is_misuse(tmp_path: Path) -> None:
    done = hone("trajectory", "export", tmp_path / "gone", "--format", "atif")
    assert done.returncode == 2
    assert f"there is no run {tmp_path / 'gone'}" in done.stderr


def test_damaged_rollout_is_named_and_leaves_no_files(run: Path, tmp_path: Path) -> None:
    damaged = Store(run / "rollouts").names()[2]
    (run / "rollouts" / damaged / "tokens.parquet").write_bytes(b"cut")
    done = hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    assert done.returncode == 1
    assert damaged in done.stderr
    assert names(tmp_path) == ["runs"]


def test_model_of_an_evaluation_is_named(tmp_path: Path) -> None:
    Store(tmp_path / "rollouts").save(example(), group=0, index=0)
    (tmp_path / "summary.json").write_text('{"model": "models/Qwen3-8B"}')
    hone("trajectory", "export", tmp_path, "--format", "atif", "-o", tmp_path / "out")
    assert documents(tmp_path / "out")[0]["agent"]["model_name"] == "Qwen3-8B"


def test_sample_that_was_tried_again_gets_a_number(tmp_path: Path) -> None:
    store = Store(tmp_path / "rollouts")
    for index in range(2):
        store.save_sample(example(rollout_id="a/b"), index=index, meta={})
    done = export_rollouts(tmp_path, tmp_path / "out", "otel", Choice(), lambda *_: None)
    assert (done.written, names(tmp_path / "out")) == (2, ["a_b.jsonl", "a_b__2.jsonl"])


def test_rollout_that_never_began_has_no_spans(tmp_path: Path) -> None:
    store = Store(tmp_path / "rollouts")
    store.save(example(), group=0, index=0)
    store.save(example(started_at=None), group=0, index=1)
    (tmp_path / "results.jsonl").touch()
    done = hone("trajectory", "export", tmp_path, "--format", "otel", "-o", tmp_path / "out")
    assert done.stdout == f"{tmp_path / 'out'}: 1 rollouts; 1 never began.\n"


def test_imported_files_are_an_evaluation_with_the_same_rollouts(run: Path, tmp_path: Path) -> None:
    hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    imported = tmp_path / "imported"
    done = hone("trajectory", "import", *files, "-o", imported)
    assert done.stdout == f"{imported}: 5 rollouts, 0 with the tokens of their replies.\n"
    originals = {
        each.rollout_id: each for each in map(Store(run / "rollouts").load, Store(run / "rollouts").names())
    }
    store = Store(imported / "rollouts")
    for name in store.names():
        found = store.load(name)
        assert_same(found, originals.pop(found.rollout_id))
    assert originals == {}


def test_show_export_and_compare_read_an_imported_evaluation(run: Path, tmp_path: Path) -> None:
    hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    imported = tmp_path / "imported"
    hone("trajectory", "import", *sorted((tmp_path / "out").iterdir()), "-o", imported)
    figures = json.loads(hone("show", imported, "--json").stdout)
    assert (figures["resolved"], figures["n"], figures["data"]) == (3, 5, "ATIF files")
    rollout = Store(imported / "rollouts").names()[0]
    assert json.loads(hone("show", f"{imported}/{rollout}", "--json").stdout)["rollout_id"] == "flat"
    done = hone("export", imported, "-o", tmp_path / "sft.parquet")
    assert done.stdout == f"{tmp_path / 'sft.parquet'}: 3 conversations.\n"
    assert hone("compare", imported, imported).returncode == 0
    page = read((imported / "report.html").read_text())
    assert f"hone view {imported}" in page.text
    assert f"rollouts/{rollout}/traj.json" in page.links


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"schema_version": "ATIF-v9"}', "`schema_version` is 'ATIF-v9'"),
    ],
)
def test_unreadable_file_is_named_and_nothing_is_stored(
    run: Path, tmp_path: Path, content: str, said: str
) -> None:
    hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    done = hone("trajectory", "import", tmp_path / "out" / "r00.json", bad, "-o", tmp_path / "imported")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(bad) in done.stderr
    assert said in done.stderr
    assert names(tmp_path) == ["bad.json", "out", "runs"]


def test_import_never_writes_into_a_run(run: Path, tmp_path: Path) -> None:
    hone("trajectory", "export", run, "--format", "atif", "-o", tmp_path / "out")
    before = names(run / "rollouts")
    done = hone("trajectory", "import", tmp_path / "out" / "r00.json", "-o", run)
    assert done.returncode == 1
    assert f"{run} exists: choose a new directory" in done.stderr
    assert names(run / "rollouts") == before


@pytest.mark.parametrize("command", ["export", "import"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: hone trajectory {command}" in hone("trajectory", command, "--help").stdout
