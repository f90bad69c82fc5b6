"""SWE-agent's own command line, with Hone among its deployments: `python -m hone.integrations.swe_rex.sweagent`.

`instances TASKS OUT` writes tasks as the instances of `run-batch`; every other argument is SWE-agent's.
"""

from __future__ import annotations

import importlib
import json
import posixpath
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swerex.deployment import config

from hone.integrations.peer import require
from hone.integrations.swe_rex.deployment import HoneDeploymentConfig
from hone.tasks.errors import TaskError
from hone.tasks.sources import load_all
from hone.types import Task
from hone.utils.files import write_file


def instance(task: Task, tasks: Path) -> dict[str, Any]:
    """Return a task of the file `tasks` as an instance of `expert_file`.

    Raises TaskError for a repository that is not at the root of the sandbox, where SWE-agent looks for it.
    """
    parent, name = posixpath.split(task.environment.workdir)
    if parent != "/":
        raise TaskError(
            f"task {task.id}: its repository is in {task.environment.workdir}, but SWE-agent takes one in /"
        )
    return {
        "env": {
            "deployment": {"type": "hone", "tasks": str(tasks.resolve()), "task": task.id},
            "repo": {"type": "preexisting", "repo_name": name, "reset": False},
        },
        "problem_statement": {"type": "text", "text": task.problem, "id": task.id},
    }


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["instances"]:
        _, tasks, out = arguments
        instances = [instance(task, Path(tasks)) for task in load_all(tasks)]
        write_file(Path(out), json.dumps(instances, indent=1))
        return
    require("sweagent", ">=1.1", "pip install -e SWE-agent, a checkout of github.com/SWE-agent/SWE-agent")
    # SWE-agent reads this union when it is imported.
    config.DeploymentConfig = config.DeploymentConfig | HoneDeploymentConfig  # type: ignore[misc]
    importlib.import_module("sweagent.run.run").main(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
