"""Rows of R2E-Gym: an image of a repository before a commit, and the status of each test after it.

The image has the tests in `/r2e_tests`. Their names are those of the data set's own log parser:
`TestClass.test_name`, without the file. A task is resolved when all statuses equal the expected ones.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.rows import Row, record, text
from hone.types import Checks, Environment, Task

RULE = "exact"  # the parsed statuses equal `metadata["expected"]`
PARSER = "r2e_gym"
# Paths in the images that an agent must not see: tests, results, the parsed fix.
HIDDEN = (
    "/r2e_tests", "run_tests.sh", "parsed_commit.json", "execution_result.json", "expected_test_output.json",
    "syn_issue.json", "modified_files.json", "modified_entities.json",
)  # fmt: skip
_STATUSES = ("PASSED", "FAILED", "ERROR")
_REPOSITORIES = {
    "aiohttp": "aio-libs/aiohttp",
    "bokeh": "bokeh/bokeh",
    "coveragepy": "nedbat/coveragepy",
    "datalad": "datalad/datalad",
    "mypy": "python/mypy",
    "numpy": "numpy/numpy",
    "orange3": "biolab/orange3",
    "pandas": "pandas-dev/pandas",
    "pillow": "python-pillow/Pillow",
    "pyramid": "Pylons/pyramid",
    "scrapy": "scrapy/scrapy",
    "statsmodels": "statsmodels/statsmodels",
    "sympy": "sympy/sympy",
    "tornado": "tornadoweb/tornado",
}
_QUIET = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning'"
_PYTHON = ".venv/bin/python -W ignore"
_RUNNERS = ("tornado_unittest_runner.py", "unittest_custom_runner.py")  # test files that replace pytest
_TIMEOUT_S = 300.0  # of the data set's harness
_SCRIPT = """#!/bin/bash
cd /testbed
rm -rf r2e_tests
cp -r /r2e_tests r2e_tests
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
"""


def to_task(row: Row) -> Task:
    """Raises TaskError."""
    name, commit = text(row, "repo_name"), text(row, "commit_hash")
    expected = _expected(row)
    passing = [test for test, status in expected.items() if test and status == "PASSED"]
    run = record(row, "execution_result_content") if row.get("execution_result_content") else {}
    before = parse_log(text(run, "old_commit_res_stdout", ""))
    fixed = [test for test in passing if before.get(test) != "PASSED"]  # all of them, where there is no log
    kept = [test for test in passing if before.get(test) == "PASSED"]
    if not fixed:
        raise TaskError("it names no test that the fix makes pass")
    return Task(
        id=text(row, "instance_id", f"{name}__{commit}"),
        problem=_issue(text(row, "problem_statement")),
        environment=Environment(
            image=f"docker://{image_of(row)}", repo=_REPOSITORIES.get(name, name), commit=f"{commit}^"
        ),
        checks=Checks(
            fail_to_pass=tuple(fixed),
            pass_to_pass=tuple(kept),
            test_files={},
            gold_patch=_patch(row),
            script=_SCRIPT.format(command=_command(name, run)),
            rule=RULE,
            parser=PARSER,
            timeout_s=_TIMEOUT_S,
        ),
        source="r2e-gym",
        metadata={"expected": expected},
    )


def to_row(task: Task) -> Row:
    """Return the row of a task. Raises TaskError when it does not have the status of every test."""
    if task.checks.rule != RULE or not task.environment.commit.endswith("^"):
        raise TaskError(f"task {task.id} does not say the status of every test, which a row of R2E-Gym must")
    names = {repo: name for name, repo in _REPOSITORIES.items()}
    expected = {
        **task.metadata.get("expected", {}),
        **dict.fromkeys((*task.checks.fail_to_pass, *task.checks.pass_to_pass), "PASSED"),
    }
    return {
        "instance_id": task.id,
        "repo_name": names.get(task.environment.repo, task.environment.repo),
        "docker_image": task.environment.image.removeprefix("docker://"),
        "commit_hash": task.environment.commit.removesuffix("^"),
        "problem_statement": task.problem,
        "expected_output_json": json.dumps(expected),
    }


def image_of(row: Row) -> str:
    """Return the image of a row, by default by the data set's naming rule. Raises TaskError."""
    if named := text(row, "docker_image", ""):
        return named
    return f"namanjain12/{text(row, 'repo_name').lower()}_final:{text(row, 'commit_hash')}"


def parse_log(log: str) -> dict[str, str]:
    """Return test -> PASSED, FAILED or ERROR of pytest's short summary, with this data set's names."""
    _, _, summary = log.partition("short test summary info")
    statuses: dict[str, str] = {}
    for line in summary.partition("short test summary info")[0].split("\n"):
        status = next((status for status in _STATUSES if status in line), None)
        if status is not None:
            statuses[_name(".".join(line.split("::")[1:]))] = status
    return statuses


def _name(test: str) -> str:
    """Return a test name without colour codes and pytest's reason."""
    return re.sub(r"\x1b\[[\d;]*m", "", test).split(" - ")[0].strip()


def _expected(row: Row) -> dict[str, str]:
    """Return test -> status after the fix. Raises TaskError where the row does not have it."""
    expected = record(row, "expected_output_json")
    if unknown := [status for status in expected.values() if status not in _STATUSES]:
        raise TaskError(f"`expected_output_json` has the status {unknown[0]!r}: {', '.join(_STATUSES)}")
    return {_name(test): status for test, status in expected.items()}


def _issue(statement: str) -> str:
    found = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.DOTALL)
    return (found.group(1).strip() if found else "") or statement


def _command(name: str, run: Row) -> str:
    listed = run.get("test_file_names")
    files = listed if isinstance(listed, list) else []
    for runner in _RUNNERS:
        if runner in files:
            return f"{_PYTHON} r2e_tests/{runner}"
    display = "QT_QPA_PLATFORM=minimal " if name == "orange3" else ""
    server = "xvfb-run --auto-servernum " if name == "orange3" else ""
    return f"{display}{_QUIET} {server}{_PYTHON} -m pytest -rA r2e_tests"


def _patch(row: Row) -> str:
    """Return the fix as a unified diff: the commit's changes of Python files that are not tests."""
    if not row.get("parsed_commit_content"):
        return ""
    commit = record(row, "parsed_commit_content")
    try:
        return "".join(
            _diff(file) for file in commit["file_diffs"] if _is_source(file["header"]["file"]["path"])
        )
    except (KeyError, TypeError, AttributeError):
        raise TaskError("`parsed_commit_content` holds no parsed commit") from None


def _is_source(path: str) -> bool:
    name, folders = PurePosixPath(path).name, {part.lower() for part in PurePosixPath(path).parts[:-1]}
    is_test = name.startswith("test_") or name.endswith("_test.py") or folders & {"test", "tests"}
    return name.endswith(".py") and not is_test


def _diff(file: Any) -> str:
    path = file["header"]["file"]["path"]
    lines = [f"diff --git a/{path} b/{path}"]
    if file["header"].get("misc_line"):
        lines.append(file["header"]["misc_line"])
    if index := file.get("index_line"):
        mode = f" {index['mode']}" if index.get("mode") else ""
        lines.append(f"index {index['old_commit_hash']}..{index['new_commit_hash']}{mode}")
    if file.get("minus_file") and file.get("plus_file"):
        lines += [f"--- {file['minus_file']['path']}", f"+++ {file['plus_file']['path']}"]
    marks = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
    for hunk in file.get("hunks") or ():
        where = hunk["descriptor"]
        section = f" {where['section']}" if where.get("section") else ""
        lines.append(f"@@ -{_range(where['old_range'])} +{_range(where['new_range'])} @@{section}")
        lines += [marks[line["type"]] + line["content"] for line in hunk["line_group"]["all_lines"]]
    return "\n".join(lines) + "\n"


def _range(lines: Any) -> str:
    return str(lines["start"]) if lines.get("length") is None else f"{lines['start']},{lines['length']}"
