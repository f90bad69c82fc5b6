"""Rows of data sets become tasks and rows again: nothing is lost, and what cannot be used is told."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows, read_rows, tasks_of, write_lists, write_rows
from hone.tasks.formats import FORMATS, from_dict, save, to_line
from hone.tasks.rows import parse
from hone.types import Task

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "rows"
FILES = [
    ("swe_bench_verified.parquet", "swe-bench", 500),
    ("swe_bench_lite.jsonl", "swe-bench", 5),
    ("swe_bench_dev.jsonl", "swe-bench", 5),
    ("swe_gym.jsonl", "swe-gym", 10),
    ("swe_rebench.jsonl", "swe-rebench", 3),
    ("swe_smith.jsonl", "swe-smith", 1),
    ("kodcode_demo.jsonl", "kodcode", 123),
]
published = pytest.mark.skipif(not PUBLISHED.exists(), reason="the published rows are not here")
ROW: dict[str, Any] = {
    "instance_id": "owner__name-1",
    "repo": "owner/name",
    "base_commit": "1234567",
    "problem_statement": "It is broken.",
    "patch": "diff --git a/x b/x\n",
    "test_patch": "diff --git a/test_x b/test_x\n",
    "FAIL_TO_PASS": '["test_x.py::test_a"]',
    "PASS_TO_PASS": [],
}


def _read(file: str, name: str) -> list[Task]:
    imported = import_rows(read_rows(PUBLISHED / file), FORMATS[name])
    assert imported.refused == ()
    return list(imported.tasks)


@published
@pytest.mark.parametrize(("file", "name", "number"), FILES)
def test_published_rows_survive_a_round_trip(file: str, name: str, number: int, tmp_path: Path) -> None:
    rows: list[Any] = list(read_rows(PUBLISHED / file))
    assert len(rows) == number
    rows = [row for place, row in enumerate(rows) if row not in rows[:place]]  # one is there twice
    tasks = _read(file, name)
    stored = [from_dict(parse(to_line(task))) for task in tasks]
    assert stored == tasks
    assert [FORMATS[name].write(task) for task in stored] == rows
    out = tmp_path / f"rows{Path(file).suffix}"
    write_rows([FORMATS[name].write(task) for task in stored], out)
    assert list(read_rows(out)) == rows


@published
def test_images_follow_the_rule_of_the_data_set() -> None:
    images = {
        "swe_bench_lite.jsonl": "docker://swebench/sweb.eval.x86_64.django_1776_django-16255:latest",
        "swe_gym.jsonl": "docker://xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest",
        "swe_smith.jsonl": "docker://swebench/swesmith.x86_64.pandas-dev_1776_pandas.95280573",
        "swe_rebench.jsonl": "docker://swerebench/sweb.eval.x86_64.fair-workflows_1776_nanopub-140:latest",
    }
    found = {file: _read(file, name)[0].environment.image for file, name, _ in FILES if file in images}
    assert found == images


cells = st.none() | st.text(max_size=5) | st.integers() | st.lists(st.text(max_size=3), max_size=3)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(ROW)) | st.text(max_size=4), cells, max_size=6),
    st.sampled_from([name for name in FORMATS if name.startswith("swe-")]),
    st.booleans(),
)
def test_any_row_is_refused_or_survives_a_round_trip(cells: dict[str, Any], name: str, wrapped: bool) -> None:
    row = {**ROW, **cells}
    if wrapped:
        name, row = "slime", {"text": "x", "metadata": {"instance": row, "data_source": name}, "more": 1}
    imported = import_rows([row], FORMATS[name])
    if imported.tasks:
        assert FORMATS[name].write(imported.tasks[0]) == row
    else:
        assert imported.refused[0].reason


def test_changes_keep_the_encoding_of_their_column() -> None:
    (task,) = import_rows([{**ROW, "hints_text": "look"}], FORMATS["swe-bench"]).tasks
    checks = dataclasses.replace(task.checks, fail_to_pass=("b",), pass_to_pass=("c",))
    changed = dataclasses.replace(task, problem="Better told.", checks=checks)
    assert FORMATS["swe-bench"].write(changed) == {
        **ROW,
        "hints_text": "look",
        "problem_statement": "Better told.",
        "FAIL_TO_PASS": '["b"]',
        "PASS_TO_PASS": ["c"],
    }


def test_prompt_file_keeps_the_row_and_changes() -> None:
    row = {**ROW, "hints_text": "look"}
    (task,) = import_rows([row], FORMATS["swe-bench"]).tasks
    prompt = FORMATS["slime"].write(task)
    assert prompt == {"text": "It is broken.", "metadata": {"instance": row, "data_source": "swe-bench"}}
    for metadata in (prompt["metadata"], json.dumps(prompt["metadata"])):
        (again,) = import_rows([{**prompt, "metadata": metadata}], FORMATS["slime"]).tasks
        told = FORMATS["slime"].write(dataclasses.replace(again, problem="Better told."))
        inner = told["metadata"] if isinstance(metadata, dict) else json.loads(told["metadata"])
        assert told["text"] == "Better told."
        assert inner["instance"] == {**row, "problem_statement": "Better told."}


def test_request_carries_its_row_and_no_messages() -> None:
    (task,) = import_rows([ROW], FORMATS["swe-bench"]).tasks
    parameters = FORMATS["nemo-gym"].write(task)["responses_create_params"]
    assert parameters["input"] == []
    assert json.loads(parameters["metadata"]["instance_dict"])["instance_id"] == ROW["instance_id"]


def test_edition_5_row_keeps_image_script_parser_and_rule() -> None:
    newer = {"image": "me/x:1", "eval_script": "run", "log_parser": "parse_log_x", "eval_type": "fail_only"}
    (task,) = import_rows([{**ROW, **newer}], FORMATS["swe-bench"]).tasks
    assert task.environment.image == "docker://me/x:1"
    assert (task.checks.script, task.checks.parser, task.checks.rule) == ("run", "parse_log_x", "fail_only")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"FAIL_TO_PASS": "[]"}, "names no test"),
        ({"FAIL_TO_PASS": None}, "names no test"),
        ({"FAIL_TO_PASS": '["a"'}, "`FAIL_TO_PASS` holds no list"),
        ({"PASS_TO_PASS": [1]}, "`PASS_TO_PASS` must be a list of texts"),
        ({"instance_id": None}, "`instance_id` is missing"),
        ({"problem_statement": 3}, "`problem_statement` must be a text, got int"),
    ],
)
def test_unusable_row_is_refused_and_others_are_imported(change: dict[str, Any], reason: str) -> None:
    rows = [ROW, {**ROW, "instance_id": "owner__name-2", **change}, {**ROW, "instance_id": "owner__name-3"}]
    imported = import_rows(rows, FORMATS["swe-bench"])
    assert [task.id for task in imported.tasks] == ["owner__name-1", "owner__name-3"]
    (refusal,) = imported.refused
    assert refusal.row == 2
    assert reason in refusal.reason


@pytest.mark.parametrize("column", ["instance_id", "id", "question_id", "task_id", "commit_hash"])
def test_refused_row_is_named_by_its_id(column: str) -> None:
    (refusal,) = import_rows([{column: "x-1"}], FORMATS["swe-bench"]).refused
    assert str(refusal).startswith("row 1 (x-1): ")


def test_repeated_row_is_counted_and_changed_one_refused() -> None:
    imported = import_rows([ROW, ROW, {**ROW, "problem_statement": "Else."}], FORMATS["swe-bench"])
    assert (len(imported.tasks), imported.repeated) == (1, 1)
    assert imported.refused[0].reason == "the id owner__name-1 was already used by another task"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.json", b"{}", "does not contain a list"),
        ("x.json", b"[", "not valid JSON"),
        ("x.json", b"[" * 100_000, "nested too deeply"),
        ("x.json.gz", gzip.compress(b"[" + b" " * 99_999, mtime=0)[:50], "ended before"),
        ("x.jsonl.gz", b"{}", "Not a gzipped file"),
        ("x.parquet", b"PAR1 cut off", "Parquet"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=f"{name}: .*{reason}"):
        list(read_rows(tmp_path / name))
    with pytest.raises(TaskError, match="No such file"):
        list(read_rows(tmp_path / "absent" / name))


def test_truncated_line_loses_one_row(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    bad = [
        b"[1]",
        b"\xff\xfe{}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        json.dumps(ROW).encode()[:50],
    ]
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n\n".join([json.dumps(ROW).encode(), *bad]))
    imported = import_rows(read_rows(file), FORMATS["swe-bench"])
    assert len(imported.tasks) == 1
    assert [refusal.row for refusal in imported.refused] == [2, 3, 4, 5, 6]


def test_truncated_gzip_file_yields_rows_and_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl.gz"
    lines = "".join(json.dumps({**ROW, "instance_id": f"o__n-{random.random()}"}) + "\n" for _ in range(2000))
    file.write_bytes(gzip.compress(lines.encode()))
    assert len(list(read_rows(file))) == 2000
    file.write_bytes(file.read_bytes()[:-2000])
    *rows, last = read_rows(file)
    assert 0 < len(rows) < 2000
    assert all(isinstance(row, dict) for row in rows[:-1])
    assert "the file is truncated" in str(last)


def test_non_json_values_are_refused_and_dates_become_text(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 1, 2, 3, 4, 5)
    numbers = [{**ROW, "more": 0.5}, {**ROW, "instance_id": "a__b-2", "more": float("nan")}]
    imported = import_rows(numbers, FORMATS["swe-bench"])
    assert [str(refusal) for refusal in imported.refused] == [
        "row 2 (a__b-2): `more`: it holds nan, which JSON does not have: write null there"
    ]
    odd = [{**ROW, "created_at": day}, {**ROW, "instance_id": "a__b-2", "more": {"inside": [b"raw"]}}]
    imported = import_rows(odd, FORMATS["swe-bench"])
    assert imported.tasks[0].metadata["row"]["created_at"] == "2024-01-02T03:04:05"
    assert "type bytes" in imported.refused[0].reason
    assert from_dict(parse(to_line(imported.tasks[0]))) == imported.tasks[0]


def test_shards_of_one_set_are_read_in_order(tmp_path: Path) -> None:
    for split, number in (("train", 0), ("train", 1), ("test", 0)):
        count = {"train": 2, "test": 1}[split]
        shard = tmp_path / "data" / f"{split}-{number:05}-of-{count:05}.parquet"
        write_rows([{**ROW, "instance_id": f"{split}__{number}-{i}"} for i in range(3)], shard)
    with pytest.raises(TaskError, match=r"several sets \(test, train\): take one with `hone tasks import"):
        list(read_rows(tmp_path))
    with pytest.raises(TaskError, match="no set 'dev': test, train"):
        list(read_rows(tmp_path, "dev"))
    rows: list[Any] = list(read_rows(tmp_path, "train"))
    assert [row["instance_id"] for row in rows] == [f"train__{n}-{i}" for n in range(2) for i in range(3)]
    (tmp_path / "data" / "train-00000-of-00002.parquet").write_bytes(b"PAR1")
    imported = import_rows(read_rows(tmp_path, "train"), FORMATS["swe-bench"])
    assert (len(imported.tasks), len(imported.refused)) == (3, 1)
    assert "train-00000-of-00002.parquet" in imported.refused[0].reason
    (tmp_path / "data" / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(TaskError, match="1 of 2 files of the set train"):
        list(read_rows(tmp_path, "train"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TaskError, match=r"has no .parquet file"):
        list(read_rows(empty))
    with pytest.raises(TaskError, match="remove --split"):
        list(read_rows(tmp_path / "data" / "test-00000-of-00001.parquet", "test"))


@published
def test_truncated_parquet_file_is_an_error(tmp_path: Path) -> None:
    whole = (PUBLISHED / "swe_bench_verified.parquet").read_bytes()
    for size in (0, 3, 1000, len(whole) // 2, len(whole) - 1):
        file = tmp_path / "cut.parquet"
        file.write_bytes(whole[:size])
        with pytest.raises(TaskError, match=r"cannot read rows from .*cut.parquet: "):
            list(read_rows(file))


def test_parquet_keeps_columns_and_refuses_to_change_a_row(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write_rows([{"a": 1}, {"a": None, "b": ["x"]}], file)
    assert list(read_rows(file)) == [{"a": 1, "b": None}, {"a": None, "b": ["x"]}]
    for rows in (
        [{"a": ["x"]}, {"a": '["x"]'}],
        [{"a": {"b": 1}}, {"a": {"c": 1}}],
        [{"a": 2**70}],
        [{"a": "\ud800"}],
        [{"a": {}}],
    ):
        with pytest.raises(TaskError, match=r"export to a .jsonl file instead"):
            write_rows(rows, tmp_path / "y.parquet")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.parquet"]


def test_task_in_both_editions_is_refused() -> None:
    newer = {**ROW, "image": "me/x:1", "eval_script": "run", "log_parser": "parse_log_pytest"}
    imported = import_rows([ROW, newer, {**newer, "instance_id": "owner__name-2"}], FORMATS["swe-bench"])
    assert [task.checks.script for task in imported.tasks] == ["", "run"]
    assert [refusal.row for refusal in imported.refused] == [2]


def test_same_content_with_another_id_is_refused() -> None:
    row = {**ROW, "image": "me/x:1"}
    imported = import_rows([row, {**row, "instance_id": "owner__name-2"}], FORMATS["swe-bench"])
    assert [refusal.reason for refusal in imported.refused] == ["it is the same task as owner__name-1"]


def test_data_set_is_detected_by_columns(tmp_path: Path) -> None:
    (own,) = import_rows([{**ROW, "instance_id": "own"}], FORMATS["swe-bench"]).tasks
    file = tmp_path / "mixed.jsonl"
    save([own], file)
    rows = [
        ROW,
        {**ROW, "instance_id": "g", "repo": "dask/dask"},
        {**ROW, "instance_id": "s", "repo": "swesmith/pandas-dev__pandas.95280573", "image_name": "me/x"},
        {**ROW, "instance_id": "r", "install_config": {"log_parser": "parse_log_pytest"}},
        {"text": "x", "metadata": {"instance": {**ROW, "instance_id": "p"}}},
        {"question": "Add.", "solution": "def add(): ...", "test": "def test_a(): ...", "question_id": "k"},
        {"unknown": 1},
    ]
    with file.open("a") as more:
        more.writelines(json.dumps(row) + "\n" for row in rows)
    loaded = tasks_of(read_rows(file), "rows")
    assert [task.id for task in loaded.tasks] == ["own", "owner__name-1", "g", "s", "r", "p", "k"]
    sources = ["swe-bench", "swe-bench", "swe-gym", "swe-smith", "swe-rebench", "swe-bench", "kodcode"]
    assert [task.source for task in loaded.tasks] == sources
    assert loaded.refusals().startswith("row 8: its columns match no known data set")


@published
@pytest.mark.parametrize(("file", "name", "number"), FILES)
def test_format_of_published_files_is_detected(file: str, name: str, number: int) -> None:
    assert list(tasks_of(read_rows(PUBLISHED / file), "rows").tasks) == _read(file, name)


def test_file_without_usable_tasks_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(
        "".join(json.dumps({**ROW, "FAIL_TO_PASS": [], "instance_id": f"i{n}"}) + "\n" for n in range(7))
    )
    with pytest.raises(TaskError, match=r"row 1 \(i0\): `FAIL_TO_PASS` names no test; .*; and 2 more"):
        tasks_of(read_rows(file), "rows")
    file.write_text("")
    with pytest.raises(TaskError, match="holds no tasks"):
        tasks_of(read_rows(file), "rows")


def test_lists_have_every_id_and_docker_images(tmp_path: Path) -> None:
    (task,) = import_rows([ROW], FORMATS["swe-bench"]).tasks
    local = dataclasses.replace(task.environment, image="repo:/repositories/owner__name")
    write_lists([task, dataclasses.replace(task, id="local", environment=local)], tmp_path / "lists")
    assert (tmp_path / "lists" / "instance_ids.txt").read_text() == "owner__name-1\nlocal\n"
    images = "swebench/sweb.eval.x86_64.owner_1776_name-1:latest\n"
    assert (tmp_path / "lists" / "docker_images.txt").read_text() == images


@pytest.mark.parametrize("name", [".", "..", "a/b", "../a", "a\nb", "a\x00"])
def test_id_that_cannot_name_a_directory_is_refused(name: str) -> None:
    row = {"question_id": name, "question": "Add.", "solution": "x = 1", "test": "def test_a(): ..."}
    (refused,) = import_rows([row]).refused
    assert "cannot name a directory" in refused.reason
