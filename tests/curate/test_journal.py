import pytest

from hone.curate.journal import Journal
from hone.tasks.errors import TaskError

RUN = {"commit": "abc", "seed": 0}


def test_values_survive_reopening(tmp_path):
    path = tmp_path / "new" / "tasks.jsonl.partial"
    journal = Journal(path, RUN)
    journal.put("one", {"failing": ["t"]})
    journal.put("one", {"failing": ["u"]})
    again = Journal(path, RUN)
    assert (again.get("one"), again.get("two")) == ({"failing": ["u"]}, None)
    assert list(again.items()) == [("one", {"failing": ["u"]})]


def test_partial_last_line_is_dropped(tmp_path):
    path = tmp_path / "journal"
    Journal(path, RUN).put("one", 1)
    with path.open("a") as file:
        file.write('["two", {"fai')
    journal = Journal(path, RUN)
    assert (journal.get("one"), journal.get("two")) == (1, None)
    journal.put("three", 3)
    assert Journal(path, RUN).get("three") == 3


def test_journal_of_another_run_is_refused(tmp_path):
    Journal(tmp_path / "journal", RUN).put("one", 1)
    with pytest.raises(TaskError, match=r"\(seed: 1 here, 0 in journal\): run that one again, delete"):
        Journal(tmp_path / "journal", {**RUN, "seed": 1})


def test_refusal_names_what_differs_in_groups(tmp_path):
    there = {"sandbox": {"memory_mib": 512, "pids": 1}, "tasks": {"a": "1", "b": "2"}}
    here = {"sandbox": {"memory_mib": 1024, "pids": 1}, "tasks": {"a": "1", "c": "3"}}
    Journal(tmp_path / "journal", there).put("one", 1)
    with pytest.raises(TaskError) as refusal:
        Journal(tmp_path / "journal", here)
    for difference in (
        "sandbox.memory_mib: 1024 here, 512 in journal",
        'tasks.c: "3" here, absent in journal',
        'tasks.b: absent here, "2" in journal',
    ):
        assert difference in str(refusal.value)
    assert "pids" not in str(refusal.value)
    assert "tasks.a" not in str(refusal.value)


def test_journal_without_a_value_belongs_to_no_run(tmp_path):
    Journal(tmp_path / "journal", RUN)
    assert not (tmp_path / "journal").exists()
    (tmp_path / "journal").write_text('{"seed": 7}\n')  # killed before the first value
    Journal(tmp_path / "journal", RUN).put("one", 1)
    assert Journal(tmp_path / "journal", RUN).get("one") == 1


@pytest.mark.parametrize("content", [b"not a journal\n", b"\xff\xfe\n", b"{}\n{\n", b"{}\n[]\n", b"{}\n3\n"])
def test_damaged_journal_is_refused(tmp_path, content):
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(TaskError, match="delete it to start again"):
        Journal(tmp_path / "journal", {})


def test_removed_journal_leaves_no_file(tmp_path):
    journal = Journal(tmp_path / "journal", RUN)
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_journal_without_a_path_keeps_values_in_memory():
    journal = Journal(None, RUN)
    journal.put("one", 1)
    journal.remove()
    assert journal.get("one") == 1
