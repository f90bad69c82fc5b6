"""A Harbor task's folder as a task of Hone, and any task of Hone as a folder that Harbor itself can run.

A row of this format is {"name": the folder's name, "folder": its packed files}. An exported task carries
Hone's own record of it, so that its import is the task that was exported, unchanged.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from hone.tasks.errors import TaskError
from hone.tasks.formats import own
from hone.tasks.harbor.folder import (
    CONFIG,
    DOCKERFILE,
    INSTRUCTION,
    RECORD,
    SOLUTION,
    TEST,
    check_name,
    digest_of,
    pack,
    read_folder,
    record_of,
    unpack,
    write_folder,
)
from hone.tasks.harbor.serve import PARSER, instruction_of, read_task
from hone.tasks.rows import Row
from hone.types import Checks, Environment, Task

_WORD = "harbor"  # metadata key of the task's own metadata
_DEPTH = 4  # of a task's folder below the one that is imported


# --- folders


def is_source(path: Path) -> bool:
    """Return whether a directory is a task's folder, or has some below it."""
    return path.is_dir() and next(_folders(path), None) is not None


def read_folders(path: Path) -> Iterator[Row | TaskError]:
    """Yield the row of each task's folder in `path`, which may be one; a TaskError for an unreadable one."""
    for folder in _folders(path):
        try:
            yield {"name": folder.resolve().name, "folder": read_folder(folder)}
        except (TaskError, OSError) as error:
            yield TaskError(f"{folder}: {error}")


def write_folders(rows: Iterable[Row], path: Path) -> int:
    """Write each row's folder into the directory `path`; return their number. Raises TaskError, OSError."""
    count = 0
    for row in rows:
        target = path / row["name"]
        if target.exists():
            raise TaskError(f"{target} already exists: choose an empty directory")
        write_folder(row["folder"], target)
        count += 1
    return count


def _folders(path: Path) -> Iterator[Path]:
    for depth in range(_DEPTH + 1):
        found = sorted(
            each.parent for each in path.glob("/".join(["*"] * depth + [CONFIG])) if each.is_file()
        )
        if found:
            yield from found
            return


# --- in


def to_task(row: Row) -> Task:
    """Return the task of a row. Raises TaskError."""
    files = row.get("folder")
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise TaskError("`folder` must be the packed files of a task by path")
    for path, packed in files.items():
        check_name(path)
        unpack(packed)
    if (record := record_of(files)) is not None:
        return own.from_dict(record)
    task = read_task(files)
    config = task.config
    name = config.task.name.replace("/", "__") if config.task is not None else str(row.get("name", ""))
    return Task(
        id=name,
        problem=instruction_of(files, config),
        environment=Environment(image=task.image, workdir=task.workdir),
        checks=Checks(
            fail_to_pass=(TEST,),
            pass_to_pass=(),
            test_files={},
            gold_patch="",
            parser=PARSER,
            folder=files,
            timeout_s=sum(stage.timeout_s for stage in task.stages),
        ),
        source=config.source or PARSER,
        metadata={_WORD: _plain(config.metadata)},
    )


def _plain(value: Any) -> Any:
    """Return TOML values as JSON values: dates become text."""
    return json.loads(json.dumps(value, default=str))


# --- out


def to_row(task: Task) -> Row:
    """Return the row of a task. Raises TaskError for a task that Harbor cannot run from a folder."""
    if task.checks.folder:
        return {"name": task.id, "folder": dict(task.checks.folder)}
    files = {
        CONFIG: pack(tomli_w.dumps(_config(task)).encode(), executable=False),
        INSTRUCTION: _text(task.problem),
        **_environment(task),
        **_tests(task),
        **_solution(task),
    }
    record = {"task": own.to_dict(task), "digest": digest_of(files)}
    own.to_line(task)  # raises where JSON would change the task
    return {"name": task.id, "folder": {**files, RECORD: _text(json.dumps(record))}}


def _text(text: str, *, executable: bool = False) -> str:
    return pack(text.encode("utf-8", "surrogateescape"), executable=executable)


def _config(task: Task) -> dict[str, Any]:
    image = task.environment.image
    environment: dict[str, Any] = {"workdir": task.environment.workdir, "network_mode": "no-network"}
    if image.startswith("docker://"):
        environment["docker_image"] = image.removeprefix("docker://")
    return {
        "schema_version": "1.4",
        "metadata": {"source": task.source},
        "verifier": {"timeout_sec": float(task.checks.timeout_s)},
        "environment": environment,
    }


def _environment(task: Task) -> dict[str, str]:
    """Return the build context: the files that the agent meets, as one commit."""
    image, workdir = task.environment.image, shlex.quote(task.environment.workdir)
    if image.startswith("docker://") and not task.environment.history:
        return {}
    if image != "host":
        raise TaskError(
            f"task {task.id} is in the image {image}, which only this machine has: Harbor runs tasks of "
            "registries' images and of Hone's own files"
        )
    tree = {path: text for commit in task.environment.history for path, text in commit.files.items()}
    lines = [
        "FROM python:3.11-slim",
        "RUN apt-get update && apt-get install -y --no-install-recommends git && pip install pytest",
        f"COPY tree/ {workdir}/",
        f"WORKDIR {workdir}",
        "RUN git init -q && git add -A && "
        "git -c user.name=Hone -c user.email=hone@localhost commit -q -m 'The base commit.'",
    ]
    files = {f"environment/tree/{path}": _text(text) for path, text in tree.items() if text is not None}
    return {DOCKERFILE: _text("\n".join(lines) + "\n"), **files}


def _tests(task: Task) -> dict[str, str]:
    checks = task.checks
    if checks.script or checks.parser not in ("pytest", "unittest"):
        raise TaskError(
            f"task {task.id} is graded by the script of its data set, which a Harbor task cannot carry"
        )
    named = " ".join(shlex.quote(test) for test in checks.named_tests)
    patch = "git apply /tests/tests.diff || exit 1\n" if checks.test_patch else ""
    script = f"""#!/bin/bash
cd {shlex.quote(task.environment.workdir)} || exit 1
cp -R /tests/files/. . 2>/dev/null
{patch}if python3 -m pytest -q {named}; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
    files = {f"tests/files/{path}": _text(text) for path, text in checks.test_files.items()}
    if checks.test_patch:
        files["tests/tests.diff"] = _text(checks.test_patch)
    return {TEST: _text(script, executable=True), **files}


def _solution(task: Task) -> dict[str, str]:
    if not task.checks.gold_patch:
        return {}
    script = f"#!/bin/bash\ncd {shlex.quote(task.environment.workdir)} && git apply /solution/fix.diff\n"
    return {SOLUTION: _text(script, executable=True), "solution/fix.diff": _text(task.checks.gold_patch)}
