from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.utils.jsonl import append_json, drop_partial_line, read_json_lines

json_values = st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3))
records = st.lists(json_values, max_size=5)


@given(records=records, cut=st.integers(min_value=0, max_value=50))
def test_cut_file_keeps_every_complete_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[object], cut: int
):
    path = tmp_path_factory.mktemp("journal") / "records.jsonl"
    path.touch()
    for record in records:
        append_json(path, record)
    data = path.read_bytes()
    kept = data[: max(len(data) - cut, 0)]
    path.write_bytes(kept)
    drop_partial_line(path)
    assert [record for _, record in read_json_lines(path)] == records[: kept.count(b"\n")]
    append_json(path, "next")
    assert list(read_json_lines(path))[-1] == (kept.count(b"\n") + 1, "next")


def test_missing_file_has_no_records(tmp_path: Path):
    drop_partial_line(tmp_path / "absent")
    assert list(read_json_lines(tmp_path / "absent")) == []


def test_bad_line_is_named(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2, is not JSON"):
        list(read_json_lines(path))


def test_full_disk_is_an_error_and_leaves_no_partial_line():
    with pytest.raises(OSError, match="No space left"):
        append_json(Path("/dev/full"), {"a": 1})
