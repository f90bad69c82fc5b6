"""Tasks survive their export as folders that Harbor runs, and folders their import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows, read_source
from hone.tasks.formats import FORMATS, from_dict, to_line
from hone.tasks.formats.harbor import read_folders, write_folders
from hone.tasks.harbor.config import parse_config
from hone.tasks.harbor.folder import RECORD, pack, read_folder, text_of, unpack
from hone.tasks.rows import parse
from hone.tasks.settings import TasksSettings
from tests.integrations.harbor.folders import folders, write_all

HARBOR = FORMATS["harbor"]
SMALL = TasksSettings(train=60, test=20, validation=10, unseen=10)


@given(data=st.binary(max_size=200), executable=st.booleans())
def test_packed_file_is_read_back(data: bytes, executable: bool) -> None:
    assert unpack(pack(data, executable=executable)) == (data, executable)


def test_a_hundred_exported_tasks_come_back_unchanged(tmp_path: Path) -> None:
    tasks = {task.id: task for _, tasks in generate(SMALL).named() for task in tasks}
    assert write_folders(map(HARBOR.write, tasks.values()), tmp_path / "out") == 100
    back = import_rows(read_source(str(tmp_path / "out")))
    assert back.refused == ()
    assert {task.id: task for task in back.tasks} == tasks


def test_exported_folder_is_one_that_harbor_reads(tmp_path: Path) -> None:
    (task, *_) = generate(SMALL).train
    write_folders([HARBOR.write(task)], tmp_path)
    files = read_folder(tmp_path / task.id)
    assert parse_config(text_of(files, "task.toml")).environment.workdir == "/testbed"
    assert {"instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh"} <= files.keys()
    hidden = [name for name in files if name.startswith("environment/") and "hidden" in name]
    assert hidden == []  # the agent's image holds no test of the grader


def test_changed_export_is_refused_until_its_record_is_removed(tmp_path: Path) -> None:
    (task, *_) = generate(SMALL).train
    write_folders([HARBOR.write(task)], tmp_path)
    script = tmp_path / task.id / "tests" / "test.sh"
    script.write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    (row,) = read_folders(tmp_path / task.id)
    assert not isinstance(row, TaskError)
    with pytest.raises(TaskError, match="its files changed after Hone exported it"):
        HARBOR.read(row)
    (tmp_path / task.id / RECORD).unlink()
    (plain,) = read_folders(tmp_path / task.id)
    assert not isinstance(plain, TaskError)
    assert HARBOR.read(plain).checks.parser == "harbor"


def test_imported_folder_is_exported_as_it_was(tmp_path: Path) -> None:
    write_all(tmp_path / "in")
    imported = import_rows(read_source(str(tmp_path / "in")))
    assert len(imported.tasks) == 20, imported.refusals()
    write_folders(map(HARBOR.write, imported.tasks), tmp_path / "out")
    for task in imported.tasks:
        assert from_dict(parse(to_line(task))) == task
        name = task.id.removeprefix("hone__")
        assert read_folder(tmp_path / "out" / task.id) == read_folder(tmp_path / "in" / name)


def test_tasks_in_a_registry_layout_are_found(tmp_path: Path) -> None:
    chosen = dict(list(folders().items())[:2])
    write_all(tmp_path / "set" / "1.0", chosen)
    imported = import_rows(read_source(str(tmp_path)))
    assert len(imported.tasks) == 2


def test_unreadable_folder_does_not_hide_the_others(tmp_path: Path) -> None:
    write_all(tmp_path, dict(list(folders().items())[:2]))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "task.toml").write_text("schema_version = '9'")
    imported = import_rows(read_source(str(tmp_path)))
    assert len(imported.tasks) == 2
    assert "`schema_version`" in imported.refused[0].reason


def test_files_of_a_folder_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"{letter}.txt" for letter in "kdgbahfcijel"]
    for name in names:
        (tmp_path / name).touch()
    assert list(read_folder(tmp_path)) == sorted(names)


def test_links_in_a_folder_are_refused(tmp_path: Path) -> None:
    write_all(tmp_path, dict(list(folders().items())[:1]))
    (name,) = (each.name for each in tmp_path.iterdir())
    (tmp_path / name / "tests" / "link").symlink_to("/etc/passwd")
    (found,) = read_folders(tmp_path / name)
    assert isinstance(found, TaskError)
    assert "tests/link is neither a file nor a directory" in str(found)


def test_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    row = {"name": "x", "folder": {"../evil": pack(b"x", executable=False)}}
    with pytest.raises(TaskError, match="leads out of it"):
        HARBOR.read(row)
    with pytest.raises(TaskError, match="leads out of it"):
        write_folders([row], tmp_path / "out")


def test_record_holds_the_task_as_json(tmp_path: Path) -> None:
    (task, *_) = generate(SMALL).train
    record = json.loads(unpack(HARBOR.write(task)["folder"][RECORD])[0])
    assert from_dict(record["task"]) == task
