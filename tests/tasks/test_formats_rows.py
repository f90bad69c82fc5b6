"""The parsers of rows: R2E-Gym, debugging tasks, KodCode, prompts; and any row at all."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows
from hone.tasks.formats import FORMATS, detect, from_dict, to_dict, to_line
from hone.tasks.formats.r2e import parse_log
from hone.tasks.rows import parse
from hone.types import Checks, Environment, Task
from tests.examples import examples

COMMIT = "003029fe443c6c234775a2517f0d40b9d62dc40b"
LOG = """==== short test summary info ====
PASSED r2e_tests/test_1.py::test_kept
FAILED r2e_tests/test_1.py::TestCore::test_fixed - assert 1 == 2
\x1b[31mFAILED\x1b[0m r2e_tests/test_1.py::\x1b[1mtest_known\x1b[0m - no
ERROR r2e_tests/test_2.py
==== 1 failed, 1 passed ====
"""


def a_diff(path: str, line: str) -> dict[str, Any]:
    lines = [
        {"type": "context", "content": "def f():"},
        {"type": "deleted", "content": "    return 1"},
        {"type": "added", "content": line},
        {"type": "note", "content": "No newline at end of file"},
    ]
    places = {"old_range": {"start": 1, "length": 2}, "new_range": {"start": 1, "length": 2}, "section": ""}
    return {
        "header": {"file": {"path": path}, "misc_line": None},
        "index_line": {"old_commit_hash": "0000001", "new_commit_hash": "0000002", "mode": "100644"},
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": [{"descriptor": places, "line_group": {"all_lines": lines}}],
    }


R2E: dict[str, Any] = {
    "repo_name": "sympy",
    "docker_image": f"namanjain12/sympy_final:{COMMIT}",
    "commit_hash": COMMIT,
    "parsed_commit_content": json.dumps(
        {"file_diffs": [a_diff("sympy/core.py", "    return 2"), a_diff("sympy/tests/test_core.py", "pass")]}
    ),
    "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "old_commit_res_stdout": LOG}),
    "modified_files": ["sympy/core.py"],
    "num_non_test_files": 1,
    "prompt": "Write an issue.",
    "problem_statement": "[ISSUE]\nIt returns 1.\n[/ISSUE]",
    "expected_output_json": json.dumps(
        {"TestCore.test_fixed": "PASSED", "test_kept": "PASSED", "\x1b[1mtest_known\x1b[0m - no": "FAILED"}
    ),
}
DEBUGGING: dict[str, Any] = {
    "task_id": "row-7",
    "problem_statement": "f returns 1.",
    "prompt": json.dumps([{"role": "user", "content": "Repair f."}]),
    "extra_info": {
        "entrypoint": "python -m pytest --tb=no -s test.py",
        "files": [
            {"content": "def f():\n    return 1\n", "path": "f_code.py"},
            {"content": "from f_code import f\ndef test_f():\n    assert f() == 2\n", "path": "test.py"},
        ],
        "task_name": "f_7",
    },
}
KODCODE: dict[str, Any] = {
    "question_id": "Leetcode_1_I",
    "question": "Add.",
    "solution": "def add(a, b):\n    return a + b",
    "test": "def test_add():\n    pass",
}
SWE: dict[str, Any] = {
    "instance_id": "owner__name-1",
    "repo": "owner/name",
    "problem_statement": "It is broken.",
    "FAIL_TO_PASS": '["test_x.py::test_a"]',
    "PASS_TO_PASS": [],
    "install_config": {"log_parser": "parse_log_pytest"},
}
OWN = to_dict(
    Task(
        id="me__it-1",
        problem="It fails.",
        environment=Environment(
            image="repo:/repositories/me__it",
            repo="me/it",
            commit=COMMIT,
            requirements=("attrs==24.1.0", "idna==3.7"),
            distribution="it==1.0",
            paths=("src", ""),
        ),
        checks=Checks(fail_to_pass=("t.py::t",), pass_to_pass=(), test_files={"t.py": ""}, gold_patch="p"),
        source="mine",
    )
)
ROWS = {
    "hone": OWN,
    **dict.fromkeys(("swe-bench", "swe-gym", "swe-smith", "swe-rebench"), SWE),
    "r2e-gym": R2E,
    "slime": {"text": "Do it.", "metadata": {"instance": SWE, "data_source": "swe-bench"}},
    "nemo-gym": {
        "responses_create_params": {
            "input": [],
            "metadata": {"dataset_name": "SWE-Gym/SWE-Gym", "instance_dict": json.dumps(SWE)},
        }
    },
    "kodcode": KODCODE,
    "debugging": DEBUGGING,
}


def read(row: dict[str, Any], name: str) -> Task:
    return FORMATS[name].read(row)


# any row ---------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(
        ["[]", '["a"]', "{", '{"a": 1}', "[" * 100_000, "1" * 5000, "PASSED", "def test_a(): ...", "(" * 300]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["files", "path", "content", "a", "file_diffs"]), inner, max_size=3)
        | inner.map(lambda value: json.dumps(value))
    ),
    max_leaves=8,
)


@st.composite
def changed_rows(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A row of a format with some cells, at any depth, replaced or gone."""
    name = draw(st.sampled_from(sorted(ROWS)))
    row = json.loads(json.dumps(ROWS[name]))
    for _ in range(draw(st.integers(0, 3))):
        place = row
        while True:
            key = draw(st.sampled_from(sorted(place)) | st.just("more"))
            if isinstance(place.get(key), dict) and place[key] and draw(st.booleans()):
                place = place[key]
            else:
                break
        if key in place and draw(st.booleans()):
            del place[key]
        else:
            place[key] = draw(json_values)
        if not row:
            break
    return name, row


@settings(max_examples=examples(300), deadline=None)
@given(changed_rows())
def test_any_row_is_kept_or_refused(
    named: tuple[str, dict[str, Any]],
) -> None:
    name, row = named
    imported = import_rows([row], FORMATS[name])
    if not imported.tasks:
        assert imported.refused[0].reason
        return
    (task,) = imported.tasks
    again = from_dict(parse(to_line(task)))
    assert again == task
    written = FORMATS[name].write(again)
    assert import_rows([written], FORMATS[name]).tasks == (task,)
    assert name == "hone" or written == row


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from([c for row in ROWS.values() for c in row]), json_values, max_size=8))
def test_any_columns_can_be_detected(row: dict[str, Any]) -> None:
    imported = import_rows([row])
    assert len(imported.tasks) + len(imported.refused) == 1


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("swe-bench", "swe-gym", "swe-smith")])
def test_row_is_detected_by_its_columns(name: str) -> None:
    assert detect(ROWS[name]).name == name


@pytest.mark.parametrize("name", list(ROWS))
def test_task_survives_a_prompt_round_trip(name: str) -> None:
    task = read(ROWS[name] if name != "swe-smith" else {**SWE, "image_name": "me/x"}, name)
    prompt = FORMATS["slime"].write(task)
    assert set(prompt) == {"text", "metadata"}
    again = read(prompt, "slime")
    for field in ("id", "problem", "environment", "checks"):
        assert getattr(again, field) == getattr(task, field)
    stored = from_dict(parse(to_line(again)))
    assert FORMATS["slime"].write(stored) == prompt
    told = FORMATS["slime"].write(dataclasses.replace(stored, problem="Better told."))
    assert told["text"] == "Better told."
    assert read(told, "slime").checks == task.checks


def test_own_task_keeps_its_environment_in_a_prompt() -> None:
    task = read(OWN, "hone")
    assert task.environment.requirements == ("attrs==24.1.0", "idna==3.7")
    assert (task.environment.distribution, task.environment.paths) == ("it==1.0", ("src", ""))
    assert to_dict(from_dict(parse(to_line(task)))) == OWN
    for column in ("requirements", "paths"):
        with pytest.raises(TaskError, match=f"`environment.{column}` is wrong"):
            read({**OWN, "environment": {**OWN["environment"], column: "x"}}, "hone")


# R2E-Gym ---------------------------------------------------------------------------------------------

QUIET = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning'"
PYTHON = ".venv/bin/python -W ignore"


def test_r2e_row_has_each_status_before_and_after_the_fix() -> None:
    task = read(R2E, "r2e-gym")
    assert task.id == f"sympy__{COMMIT}"
    assert task.problem == "It returns 1."
    assert (task.environment.repo, task.environment.commit) == ("sympy/sympy", f"{COMMIT}^")
    assert task.environment.image == f"docker://namanjain12/sympy_final:{COMMIT}"
    assert task.checks.fail_to_pass == ("TestCore.test_fixed",)
    assert task.checks.pass_to_pass == ("test_kept",)
    assert task.checks.rule == "exact"
    assert task.metadata["expected"] == {
        "TestCore.test_fixed": "PASSED",
        "test_kept": "PASSED",
        "test_known": "FAILED",
    }


def test_r2e_image_follows_from_repository_and_commit() -> None:
    task = read({**R2E, "docker_image": None, "repo_name": "orange3"}, "r2e-gym")
    assert task.environment.image == f"docker://namanjain12/orange3_final:{COMMIT}"


@pytest.mark.parametrize(
    "name",
    [
        *("aiohttp", "bokeh", "coveragepy", "datalad", "mypy", "numpy", "orange3", "pandas", "pillow"),
        *("pyramid", "scrapy", "statsmodels", "sympy", "tornado"),
    ],
)
def test_r2e_repository_has_its_owner(name: str) -> None:
    owner, _, repository = read({**R2E, "repo_name": name}, "r2e-gym").environment.repo.partition("/")
    assert owner
    assert repository.lower() == name


def test_r2e_patch_applies_without_tests(tmp_path: Path) -> None:
    patch = read(R2E, "r2e-gym").checks.gold_patch
    assert "test_core" not in patch
    (tmp_path / "sympy").mkdir()
    (tmp_path / "sympy" / "core.py").write_text("def f():\n    return 1\n")
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "sympy" / "core.py").read_text() == "def f():\n    return 2"


def test_r2e_change_without_hunks_is_its_header() -> None:
    change = {**a_diff("core.py", ""), "minus_file": None, "plus_file": None, "hunks": None}
    row = {**R2E, "parsed_commit_content": json.dumps({"file_diffs": [change]})}
    header = "diff --git a/core.py b/core.py\nindex 0000001..0000002 100644\n"
    assert read(row, "r2e-gym").checks.gold_patch == header


@pytest.mark.parametrize(
    ("name", "files", "command"),
    [
        ("sympy", ["test_1.py"], f"{QUIET} {PYTHON} -m pytest -rA r2e_tests"),
        ("tornado", ["a.py", "tornado_unittest_runner.py"], f"{PYTHON} r2e_tests/tornado_unittest_runner.py"),
        ("pillow", ["a.py", "unittest_custom_runner.py"], f"{PYTHON} r2e_tests/unittest_custom_runner.py"),
        (
            "orange3",
            ["test_1.py"],
            f"QT_QPA_PLATFORM=minimal {QUIET} xvfb-run --auto-servernum {PYTHON} -m pytest -rA r2e_tests",
        ),
    ],
)
def test_r2e_script_runs_the_tests_of_the_image(name: str, files: list[str], command: str) -> None:
    run = json.dumps({"test_file_names": files})
    script = read({**R2E, "repo_name": name, "execution_result_content": run}, "r2e-gym").checks.script
    assert f"\n{command}\n" in script
    assert script.index("cp -r /r2e_tests r2e_tests") < script.index("Start Test Output")
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)


def test_r2e_row_without_a_log_expects_all_tests_fixed() -> None:
    task = read({**R2E, "execution_result_content": None}, "r2e-gym")
    assert task.checks.fail_to_pass == ("TestCore.test_fixed", "test_kept")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"expected_output_json": "{}"}, "names no test that the fix makes pass"),
        ({"expected_output_json": '{"test_kept": "PASSED"}'}, "names no test that the fix makes pass"),
        ({"expected_output_json": '{"a": "SKIPPED"}'}, "has the status 'SKIPPED'"),
        ({"expected_output_json": "[1"}, "holds no object"),
        ({"parsed_commit_content": '{"file_diffs": [{}]}'}, "holds no parsed commit"),
        ({"commit_hash": None}, "`commit_hash` is missing"),
    ],
)
def test_unusable_r2e_row_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(TaskError, match=reason.replace("(", r"\(")):
        read({**R2E, **change}, "r2e-gym")


def test_r2e_log_is_parsed_like_the_data_set() -> None:
    assert parse_log(LOG) == {
        "test_kept": "PASSED",
        "TestCore.test_fixed": "FAILED",
        "test_known": "FAILED",
        "": "ERROR",
    }
    assert parse_log("PASSED t.py::test_a\n") == {}


def test_r2e_row_has_later_changes() -> None:
    task = read(R2E, "r2e-gym")
    checks = dataclasses.replace(task.checks, pass_to_pass=("test_kept", "test_new"))
    row = FORMATS["r2e-gym"].write(dataclasses.replace(task, checks=checks))
    assert json.loads(row["expected_output_json"])["test_new"] == "PASSED"
    assert {**row, "expected_output_json": None} == {**R2E, "expected_output_json": None}
    with pytest.raises(TaskError, match="does not say the status of every test"):
        FORMATS["r2e-gym"].write(read(SWE, "swe-bench"))


# Debugging tasks -------------------------------------------------------------------------------------


def test_debugging_tests_are_visible_and_restored() -> None:
    task = read(DEBUGGING, "debugging")
    assert (task.id, task.problem) == ("f_7", "f returns 1.")
    (commit,) = task.environment.history
    assert set(commit.files) == {"f_code.py", "test.py"}
    assert task.checks.test_files == {"test.py": commit.files["test.py"]}
    assert (task.checks.fail_to_pass, task.checks.rule) == (("test.py::test_f",), "collected")


def test_debugging_row_is_read_in_every_published_form() -> None:
    wanted = read(DEBUGGING, "debugging")
    inner = DEBUGGING["extra_info"]
    shapes = [
        {**DEBUGGING, "extra_info": json.dumps(inner)},
        {**DEBUGGING, "extra_info": {**inner, "files": json.dumps(inner["files"])}},
        {**DEBUGGING, "extra_info": None, **inner},
        {"problem_statement": "f returns 1.", "entry": json.dumps(inner)},
        {"problem_statement": "f returns 1.", "entry": {**inner, "task_name": None, "name": "f_7"}},
    ]
    for shape in shapes:
        task = read(shape, "debugging")
        assert (task.id, task.problem, task.checks) == (wanted.id, wanted.problem, wanted.checks)
        assert task.environment == wanted.environment
        told = FORMATS["debugging"].write(dataclasses.replace(task, problem="Better told."))
        assert read(told, "debugging").problem == "Better told."
    (unnamed, named) = (read({**DEBUGGING, **change}, "debugging") for change in CHANGES)
    assert unnamed.id.startswith("debugging-")
    assert named.problem == "Repair f."


CHANGES: tuple[dict[str, Any], dict[str, Any]] = (
    {"task_id": None, "extra_info": {**DEBUGGING["extra_info"], "task_name": ""}},
    {"problem_statement": None},
)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "`files` must be a list"),
        ([{"path": "a.py", "content": ""}], "have no test.py"),
        ([{"path": "test.py", "content": "def test_a(): ..."}], "no file besides test.py"),
        ([{"path": "a.py"}, {"path": "a.py"}, {"path": "test.py", "content": ""}], "names a path twice"),
        ([{"path": "a.py"}, {"path": "test.py", "content": "x = 1"}], "has no test function"),
        ([{"path": "a.py"}, {"path": "test.py", "content": "def test_a(:"}], "are not Python"),
    ],
)
def test_unusable_debugging_row_is_refused(files: Any, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        read({**DEBUGGING, "extra_info": {"files": files}}, "debugging")


def test_request_of_another_verdict_script_is_refused() -> None:
    row = json.loads(json.dumps(ROWS["nemo-gym"]))
    row["responses_create_params"]["metadata"]["dataset_name"] = "nv-internal-1"
    with pytest.raises(TaskError, match="nv-internal-1 brings a verdict script of its own"):
        read(row, "nemo-gym")
    assert read(ROWS["nemo-gym"], "nemo-gym").source == "swe-gym"
