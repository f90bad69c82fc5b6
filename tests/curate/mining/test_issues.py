import json

import pytest

from hone.curate.mining.statement import read_issues
from hone.tasks.errors import TaskError


def test_issues_are_read_by_number(tmp_path):
    file = tmp_path / "issues.jsonl"
    rows = [
        {"number": 3, "title": "Wrong", "body": None, "state": "closed"},
        {"number": 4, "title": "Bad", "body": "So."},
    ]
    file.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    found = read_issues(file)
    assert found[3].body == ""
    assert (found[4].title, found[4].body) == ("Bad", "So.")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be an object"),
        ('{"number": "3", "title": "x"}', "`number` must be a whole number"),
        ('{"number": 3, "title": "x", "body": 4}', "`body`"),
    ],
)
def test_invalid_issue_is_named(tmp_path, line, said):
    file = tmp_path / "issues.jsonl"
    file.write_text('{"number": 1, "title": "a", "body": ""}\n' + line + "\n")
    with pytest.raises(TaskError, match=said) as caught:
        read_issues(file)
    assert f"{file}, issue 2" in str(caught.value)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(TaskError, match="cannot read rows"):
        read_issues(tmp_path / "none.jsonl")
