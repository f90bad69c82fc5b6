from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hone.utils.files import build_directory, remove_directory, replace_file, write_file


def test_write_file_replaces_content_and_leaves_nothing_else(tmp_path: Path):
    target = tmp_path / "a.json"
    write_file(target, "old")
    write_file(target, b"new", durable=True)
    assert target.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_write_file_sets_the_mode_under_any_umask(tmp_path: Path):
    before = os.umask(0o077)
    try:
        write_file(tmp_path / "token", "secret", mode=0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o644


def test_failed_writer_leaves_the_old_content(tmp_path: Path):
    target = tmp_path / "a"
    target.write_text("old")

    def fail_half_way() -> None:
        with replace_file(target) as partial:
            partial.write_text("ha")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_durable_write_syncs_file_before_rename_and_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "a"
    events: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        kind = "directory" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file"
        events.append((kind, target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(target, "x", durable=True)
    assert events == [("file", False), ("directory", True)]


def test_concurrent_builders_share_one_build(tmp_path: Path):
    builds: list[Path] = []

    def build(directory: Path, lock: int) -> None:
        builds.append(directory)
        (directory / "content").write_text("x")

    threads = [threading.Thread(target=build_directory, args=(tmp_path / "layer", build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert (tmp_path / "layer" / "content").read_text() == "x"


def test_build_that_fails_leaves_no_target_and_the_next_one_starts_empty(tmp_path: Path):
    def fail(directory: Path, lock: int) -> None:
        (directory / "half").touch()
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        build_directory(tmp_path / "layer", fail)
    assert not (tmp_path / "layer").exists()
    (tmp_path / ".layer.partial").mkdir()  # as a killed builder leaves it
    (tmp_path / ".layer.partial" / "half").touch()
    build_directory(tmp_path / "layer", lambda directory, lock: (directory / "whole").touch())
    assert [path.name for path in (tmp_path / "layer").iterdir()] == ["whole"]


def test_remove_directory_removes_the_rest_of_a_killed_removal(tmp_path: Path):
    (tmp_path / ".layer.deleting" / "rest").mkdir(parents=True)
    (tmp_path / "layer" / "more").mkdir(parents=True)
    remove_directory(tmp_path / "layer")
    assert list(tmp_path.iterdir()) == []
    remove_directory(tmp_path / "layer")  # nothing to remove is no error
