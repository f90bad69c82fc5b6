"""Rows of every format with faults seeded in them: lost and ill-typed fields, ids of no test, odd scripts."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from hone.tasks.formats import FORMATS, to_dict
from hone.types import Checks, Commit, Environment, Task
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH

Row = dict[str, Any]
START, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"
NEW_TEST = OLD_TEST + "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
_HUNK = GOLD.index("@@")
BUG = GOLD[:_HUNK] + "@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a + b\n+    return a - b\n"
VACUOUS = "tests that pass already"  # the fault after which nothing must be fixed: admission refuses it


_ADD, _NOTHING = "tests/test_calc.py::test_add", "tests/test_calc.py::test_nothing"
_OLD_LOG = """= short test summary info =
PASSED r2e_tests/test_1.py::test_nothing
FAILED r2e_tests/test_1.py::test_add - no
"""
_KODCODE = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3"
_HARBOR = {
    "task.toml": '644 utf-8\n[environment]\ndocker_image = "host"\nworkdir = "/app"\n',
    "instruction.md": "644 utf-8\nWrite 42 to answer.txt.",
    "tests/test.sh": "755 utf-8\n#!/bin/bash\ngrep -cx 42 answer.txt > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "755 utf-8\n#!/bin/bash\necho 42 > answer.txt\n",
    "environment/notes.txt": "644 utf-8\nnothing\n",
}
_DEBUGGED = "from f_code import f\n\ndef test_f():\n    assert f() == 2\n"


def base_rows(commit: str) -> dict[str, Row]:
    """Return a sound row of each format: `add` of `calc` subtracts. `commit` is that of its repository."""
    swe: Row = {
        "instance_id": "pallets__flask-1",
        "repo": "pallets/flask",
        "version": "2.0",
        "base_commit": commit,
        "problem_statement": "add(1, 2) gives -1.",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_add"]),
        "PASS_TO_PASS": ["tests/test_calc.py::test_nothing"],
        "created_at": "2023-01-01",
    }
    command = "python3 -m pytest -rA -p no:cacheprovider tests/test_calc.py | cat"  # its log decides
    script = f"cd /testbed\ngit apply - <<'EOF'\n{TEST_PATCH}EOF\n{START}\n{command}\n{END}\n"
    host = Environment(
        image="host",
        history=(Commit(message="a", files={"calc/__init__.py": BUGGY, "tests/test_calc.py": OLD_TEST}),),
    )
    checks = Checks(
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_calc.py::test_nothing",),
        test_files={"tests/test_calc.py": NEW_TEST},
        gold_patch=GOLD,
    )
    own = to_dict(Task(id="own-1", problem="It fails.", environment=host, checks=checks, source="mine"))
    config = {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest", "install": "true", "python": "3.11"}
    expected = {"test_add": "PASSED", "test_nothing": "PASSED"}
    return {
        "hone": own,
        "swe-bench": swe,
        "swe-gym": {**swe, "repo": "iterative/dvc", "version": "2.0"},
        "swe-smith": {
            "problem_statement": "add(1, 2) gives -1.",
            "FAIL_TO_PASS": [_ADD.replace("calc", "new")],  # its image holds the tests
            "PASS_TO_PASS": [_NOTHING.replace("calc", "new")],
            "instance_id": "pallets__click.fde47b4b.bug__1",
            "repo": "swesmith/pallets__click.fde47b4b",
            "patch": BUG,
            "image_name": "swesmith.x86_64.pallets__click.fde47b4b",
        },
        "swe-rebench": {**swe, "repo": "me/it", "install_config": config},
        "r2e-gym": {
            "repo_name": "sympy",
            "docker_image": "me/sympy",
            "commit_hash": commit,
            "problem_statement": "[ISSUE]\nIt fails.\n[/ISSUE]",
            "expected_output_json": json.dumps(expected),
            "execution_result_content": json.dumps(
                {"test_file_names": ["test_1.py"], "old_commit_res_stdout": _OLD_LOG}
            ),
        },
        "slime": {"text": "Do it.", "metadata": {"instance": {**swe, "eval_script": script}}},
        "nemo-gym": {
            "responses_create_params": {
                "input": [],
                "metadata": {
                    "dataset_name": "princeton-nlp/SWE-bench_Verified",
                    "instance_dict": json.dumps({**swe, "eval_script": script}),
                },
            },
            "agent_ref": {"type": "responses_api_agents", "name": "swe_agents"},
        },
        "kodcode": {
            "question_id": "K-1",
            "question": "Add.",
            "solution": "def add(a, b):\n    return a + b",
            "test": _KODCODE,
        },
        "debugging": {
            "task_id": "row-7",
            "problem_statement": "f returns 1.",
            "extra_info": {
                "entrypoint": "python -m pytest --tb=no -s test.py",
                "files": [
                    {"content": "def f():\n    return 1\n", "path": "f_code.py"},
                    {"content": _DEBUGGED, "path": "test.py"},
                ],
                "task_name": "f_7",
            },
        },
        "harbor": {"name": "harbor-1", "folder": dict(_HARBOR)},
    }


def faulty_rows(name: str, commit: str, number: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Yield `number` rows of a format, each with the name of its fault."""
    rng = random.Random(f"{name} {seed}")
    for at in range(number):
        row = copy.deepcopy(base_rows(commit)[name])
        carried = row["responses_create_params"]["metadata"] if name == "nemo-gym" else {}
        inner = json.loads(carried["instance_dict"]) if carried else row
        _set(inner, _id_of(name), f"faulty-{at}")
        problem = _PROBLEM.get(name, "problem_statement")
        asked = inner["folder"] if name == "harbor" else inner
        asked[problem] = asked[problem].replace(".", f" ({at}).", 1)  # no two rows are the same task
        faults = [*_FIELD_FAULTS, *_FAULTS.get(_family(name), ())]
        fault = rng.choice(faults)(rng, inner["metadata"]["instance"] if name == "slime" else inner)
        if carried:
            carried["instance_dict"] = json.dumps(inner)
        yield fault, row


def _family(name: str) -> str:
    return "swe" if name.startswith("swe-") or name in ("slime", "nemo-gym") else name


def _id_of(name: str) -> tuple[str, ...]:
    return {
        "hone": ("id",),
        "harbor": ("name",),
        "slime": ("metadata", "instance", "instance_id"),
        "kodcode": ("question_id",),
        "debugging": ("extra_info", "task_name"),
    }.get(name, ("instance_id",))


_PROBLEM = {"hone": "problem", "harbor": "instruction.md", "slime": "text", "kodcode": "question"}


def _set(row: Row, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        row = row[key]
    row[path[-1]] = value


def _place(rng: random.Random, row: Row) -> tuple[Row, str]:
    """Return an object in the row, at any depth, and one of its fields."""
    key = rng.choice(sorted(row))
    inner = row[key]
    if isinstance(inner, dict) and inner and rng.random() < 0.8:
        return _place(rng, inner)
    if isinstance(inner, list) and inner and isinstance(inner[0], dict) and rng.random() < 0.8:
        return _place(rng, rng.choice(inner))
    return row, key


def _lost(rng: random.Random, row: Row) -> str:
    place, key = _place(rng, row)
    del place[key]
    return f"no {key}"


def _replaced(values: list[Any], fault: str) -> Callable[[random.Random, Row], str]:
    def seed(rng: random.Random, row: Row) -> str:
        place, key = _place(rng, row)
        place[key] = rng.choice(values)
        return f"{fault} {key}"

    return seed


def _odd_text(rng: random.Random, row: Row) -> str:
    place, key = _place(rng, row)
    if isinstance(place[key], str):
        odd = rng.choice(["\0", "\ud800", "\r\n", "'; touch /tmp/x; '", "$(id)", "../../etc/passwd", "\n"])
        at = rng.randrange(len(place[key]) + 1)
        place[key] = place[key][:at] + odd + place[key][at:]
    return f"odd text in {key}"


_FIELD_FAULTS = (
    _lost,
    _lost,
    _replaced([None], "null"),
    _replaced(["", [], {}, "[]"], "empty"),
    _replaced([3, 1.5, True, [1], {"a": 1}, [[]], ["x"], "{", '["a"'], "ill-typed"),
    _odd_text,
)


def _with(fault: str, **changes: Any) -> Callable[[random.Random, Row], str]:
    def seed(_: random.Random, row: Row) -> str:
        row.update(copy.deepcopy(changes))
        return fault

    return seed


def _in_checks(fault: str, **changes: Any) -> Callable[[random.Random, Row], str]:
    def seed(_: random.Random, row: Row) -> str:
        row["checks"].update(copy.deepcopy(changes))
        return fault

    return seed


def _script(test: str, before: str = "", after: str = "") -> str:
    return f"#!/bin/bash\ncd /testbed\n{before}\n{START}\n{test}\n{END}\n{after}\n"


def _file(fault: str, path: str, content: str) -> Callable[[random.Random, Row], str]:
    def seed(_: random.Random, row: Row) -> str:
        files = row["extra_info"]["files"]
        row["extra_info"]["files"] = [each for each in files if each["path"] != path]
        row["extra_info"]["files"].append({"path": path, "content": content})
        return fault

    return seed


_PRINTED = f'echo "PASSED {_ADD}"\necho "PASSED {_NOTHING}"'
_IDS: tuple[tuple[str, list[str], list[str]], ...] = (
    ("an id that no test has", ["tests/test_calc.py::test_gone"], [_NOTHING]),
    ("a kept id that no test has", [_ADD], ["tests/test_calc.py::test_gone"]),
    ("an id of no file", ["tests/test_gone.py::test_add"], []),
    ("an id outside of the repository", ["../tests/test_calc.py::test_add"], []),
    ("an absolute id", ["/testbed/tests/test_calc.py::test_add"], []),
    ("an id without a file", ["test_add"], []),
    ("an empty id", [""], []),
    ("an id of an option", ["--version"], []),
    ("an id with a line feed", [_ADD + "\n"], []),
    ("an id twice", [_ADD, _ADD], [_ADD]),
    (VACUOUS, [_NOTHING], []),
)
_FAULTS: dict[str, tuple[Callable[[random.Random, Row], str], ...]] = {
    "swe": (
        *(_with(name, FAIL_TO_PASS=fixed, PASS_TO_PASS=kept) for name, fixed, kept in _IDS),
        _with("a script that prints verdicts", eval_script=_script(_PRINTED)),
        _with("a script that prints them for pytest", eval_script=_script("pytest -rA", before=_PRINTED)),
        _with("verdicts around the markers", eval_script=_script("true", before=_PRINTED, after=_PRINTED)),
        _with(
            "verdicts in a here-document",
            eval_script=_script(f"cat <<'EOF'\nPASSED {_ADD}\nPASSED {_NOTHING}\nEOF"),
        ),
        _with("verdicts beside a program", eval_script=_script(f"./run_tests.sh\n{_PRINTED}")),
        _with("verdicts in a file", eval_script=_script("cat results.txt")),
        _with("a script without markers", eval_script="cd /testbed\npytest -rA tests/test_calc.py\n"),
        _with("markers twice", eval_script=_script("pytest -rA") + _script("pytest -rA")),
        _with("markers in the wrong order", eval_script=f"{END}\npytest -rA\n{START}\n"),
        _with("no test command", eval_script=_script("")),
        _with("a script that fails", eval_script=_script("exit 3")),
        _with("a script that ends early", eval_script="exit 0\n" + _script("pytest -rA tests/test_calc.py")),
        _with("an unknown parser", log_parser="parse_log_cobol"),
        _with("a parser of another language", log_parser="parse_log_gotest", eval_script=_script("go test")),
        _with("another parser", log_parser="parse_log_django"),
        _with("an unknown rule", eval_type="sometimes"),
        _with("absent tests pass", eval_type="fail_only"),
        _with("a patch that is none", patch="fix it\n"),
        _with("a truncated patch", patch=GOLD[:-20]),
        _with("a patch of nothing", patch=""),
        _with("a test patch that is none", test_patch="test it\n"),
        _with("a truncated test patch", test_patch=TEST_PATCH[:-30]),
        _with("a test patch outside", test_patch=TEST_PATCH.replace("tests/", "../tests/")),
        _with("a test patch of another file", test_patch=TEST_PATCH.replace("test_calc", "test_gone")),
        _with("an unknown version", version="99"),
        _with("an unknown repository", repo="me/mine"),
        _with("a repository of another language", repo="google/gson"),
        _with("a name that is no repository", repo="flask"),
        _with("a commit that is none", base_commit="HEAD; touch /tmp/x"),
        _with("an unknown commit", base_commit="0" * 40),
        _with("an image with a space", image="me/it now"),
    ),
    "hone": (
        *(_in_checks(name, fail_to_pass=fixed, pass_to_pass=kept) for name, fixed, kept in _IDS),
        _in_checks("an unknown rule", rule="sometimes"),
        _in_checks("an unknown parser", parser="parse_log_cobol"),
        _in_checks("another parser", parser="parse_log_django"),
        _in_checks("no time", timeout_s=0),
        _in_checks("tests that are not Python", test_files={"tests/test_calc.py": "def test_add(:\n"}),
        _in_checks("tests outside", test_files={"../t.py": NEW_TEST}),
        _in_checks("a test patch that is none", test_patch="test it\n"),
        _in_checks("a patch that is none", gold_patch="fix it\n"),
        _in_checks("an option that collects nothing", command=["--collect-only"]),
        _with("an unknown field", surprise=1),
        _with("no history", environment={"image": "host"}),
    ),
    "r2e-gym": (
        _with("no expected test", expected_output_json="{}"),
        _with("tests that fail after the fix", expected_output_json=json.dumps({"test_add": "FAILED"})),
        _with("an id that no test has", expected_output_json=json.dumps({"test_gone": "PASSED"})),
        _with("an unknown status", expected_output_json=json.dumps({"test_add": "FINE"})),
        _with("a status that is none", expected_output_json=json.dumps({"test_add": 1})),
        _with("a fix that is none", parsed_commit_content=json.dumps({"file_diffs": [{}]})),
        _with("no image", docker_image=None, repo_name=None),
    ),
    "kodcode": (
        _with("tests that are not Python", test="def test_add(:"),
        _with("no tests", test="x = 1"),
        _with("tests in a function", test="def f():\n    def test_add(): ..."),
        _with("tests of another module", test=_KODCODE.replace("solution", "answer")),
        _with("a solution that is not Python", solution="def add(:"),
        _with("a wrong solution", solution="def add(a, b):\n    return a"),
        _with("a test that no one fixed", test="def test_add():\n    assert False"),
        _with("a test that is skipped", test=f"import pytest\npytestmark = pytest.mark.skip\n{_KODCODE}"),
        _with("a test that is not collected", test=f"{_KODCODE}\ntest_add.__test__ = False\n"),
    ),
    "debugging": (
        _file("tests that are not Python", "test.py", "def test_f(:"),
        _file("no tests", "test.py", "x = 1"),
        _file("a file outside", "../x.py", "x = 1"),
        _file("an absolute file", "/tmp/x.py", "x = 1"),
        _file("a file of git", ".git/config", "x"),
        _file("an empty name", "", "x"),
        _file("a hook of pytest", "conftest.py", "raise SystemExit(0)"),
    ),
}
assert set(base_rows("0" * 40)) == set(FORMATS)
