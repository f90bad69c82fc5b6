import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash, from_dict, save, to_dict, to_line
from hone.tasks.rows import parse
from hone.tasks.sources import load_all
from hone.types import Checks, Commit, Environment, Task

anything = st.text(st.characters(), max_size=12)  # surrogates, control and line separators included
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)
names = st.lists(anything, max_size=3).map(tuple)
commits = st.builds(
    Commit, message=anything, files=st.dictionaries(anything, st.none() | anything, max_size=3)
)
environments = st.builds(
    Environment, image=anything, workdir=anything, history=st.lists(commits, max_size=3).map(tuple)
)
checks = st.builds(
    Checks,
    fail_to_pass=names,
    pass_to_pass=names,
    test_files=st.dictionaries(anything, anything, max_size=3),
    gold_patch=anything,
    command=names,
    parser=anything,
    timeout_s=st.floats(min_value=0.001, max_value=1e6),
)
ids = st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters="/"), min_size=1)
tasks = st.builds(
    Task,
    id=ids.filter(lambda name: name not in (".", "..")),
    problem=anything,
    environment=environments,
    checks=checks,
    source=anything,
    metadata=st.dictionaries(anything, json_values, max_size=3),
)


def a_task(**changes) -> Task:
    fields = {
        "id": "t1",
        "problem": "It fails.",
        "environment": Environment(
            image="host", history=(Commit(message="Start", files={"a.py": "x = 1\n"}),)
        ),
        "checks": Checks(fail_to_pass=("t.py::t",), pass_to_pass=(), test_files={"t.py": ""}, gold_patch="p"),
        "source": "here",
    }
    return Task(**{**fields, **changes})


@settings(deadline=None)
@given(tasks)
def test_task_survives_a_round_trip(task):
    line = to_line(task)
    assert "\n" not in line
    assert from_dict(parse(line)) == task
    assert to_dict(from_dict(to_dict(task))) == to_dict(task)


@settings(deadline=None)
@given(st.lists(tasks, min_size=1, max_size=4, unique_by=lambda task: task.id))
def test_file_returns_the_saved_tasks(tmp_path_factory, wanted):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save(wanted, path)
    assert load_all(path) == wanted


@settings(deadline=None)
@given(tasks)
def test_truncated_line_is_an_error(task):
    line = to_line(task)
    for cut in range(0, len(line), max(1, len(line) // 20)):
        with pytest.raises(TaskError):
            from_dict(parse(line[:cut]))


@pytest.mark.parametrize(
    "metadata", [{"a": (1, 2)}, {1: "a"}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1}}]
)
def test_metadata_that_json_would_change_is_refused(metadata):
    with pytest.raises(TaskError, match="t1 cannot be written as JSON"):
        to_line(a_task(metadata=metadata))


def broken(**changes) -> dict:
    data = to_dict(a_task())
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        place = data
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return data


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem": None}, "`problem` is wrong: Field required"),
        ({"checks__gold_patch": None}, "`checks.gold_patch` is wrong: Field required"),
        ({"difficulty": 3}, "`difficulty` is wrong: Unexpected"),
        ({"id": 7}, "`id` is wrong: Input should be a valid string, got 7"),
        ({"environment": []}, "`environment` is wrong: Input should be a dictionary"),
        ({"environment__history": "x"}, "`environment.history` is wrong: Input should be a valid tuple"),
        ({"environment__history": [{"message": "m", "files": {"a": 1}}]}, "`environment.history.0.files.a`"),
        ({"checks__test_files": {"a": 1}}, "`checks.test_files.a` is wrong: Input should be a valid string"),
        ({"checks__fail_to_pass": "tests::a"}, "`checks.fail_to_pass` is wrong"),
        ({"checks__fail_to_pass": [1]}, "`checks.fail_to_pass.0` is wrong: Input should be a valid string"),
        ({"checks__timeout_s": -1}, "`checks.timeout_s` is wrong: Input should be greater than 0"),
        ({"checks__timeout_s": True}, "`checks.timeout_s` is wrong: Input should be a valid number"),
        ({"metadata": []}, "`metadata` is wrong: Input should be a valid dictionary"),
    ],
)
def test_ill_formed_task_is_refused_with_file_and_row(tmp_path, changes, said):
    path = tmp_path / "tasks.jsonl"
    path.write_text(to_line(a_task(id="t0")) + "\n\n" + json.dumps(broken(**changes)) + "\n")
    with pytest.raises(TaskError, match=r"tasks\.jsonl holds rows that cannot be used: row 2") as caught:
        load_all(path)
    assert said in str(caught.value)


def test_unusable_file_is_an_error(tmp_path):
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(TaskError, match="cannot read rows"):
        load_all(path)
    path.write_text("\n")
    with pytest.raises(TaskError, match="holds no tasks"):
        load_all(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="not valid JSON"):
        load_all(path)
    path.write_text((to_line(a_task()) + "\n") * 2)
    with pytest.raises(TaskError, match="1 rows twice"):
        load_all(path)


def test_content_hash_ignores_names_and_metadata():
    task = a_task()
    assert content_hash(task) == content_hash(a_task(id="t2", source="there", metadata={"family": "x"}))
    others = [
        a_task(problem="It fails!"),
        a_task(environment=Environment(image="host")),
        a_task(checks=Checks(fail_to_pass=(), pass_to_pass=(), test_files={}, gold_patch="p")),
    ]
    assert len({content_hash(t) for t in (task, *others)}) == 4
