"""Hone trains software-engineering agents by reinforcement learning.

    import hone

    tasks = hone.load_tasks("tasks.jsonl")              # tasks of a file or a data set
    with hone.sandbox(task=tasks[0]) as box:            # an isolated environment for commands
        print(box.exec("python -m pytest -q").text)
    rollout = hone.run(tasks[0], "oracle")              # an agent on a task, graded
    verdict = hone.grade(tasks[0], rollout.patch)       # hidden tests on a patch
    hone.evaluate(tasks, "oracle", out="results")       # resolve rate with its interval
    hone.train("quickstart")                            # reinforcement learning
    hone.read_run("runs/quickstart").steps.to_pandas()  # rollouts and steps as tables

The functions block, in scripts as in notebooks, and are imported on their first use. `hone.sandbox`,
`hone.evaluate` and `hone.train` are packages as well: `from hone.train.algorithms import Algorithm`. Their
types are in `__init__.pyi`.
"""

from __future__ import annotations

__version__ = "0.1.0"

_MODULES = {
    "HoneError": "utils.errors",
    "grade": "front_door.grading",
    "load_tasks": "front_door.tasks",
    "open_rollouts": "front_door.rollouts",
    "read_run": "front_door.tables",
    "run": "front_door.rollouts",
    "sft": "front_door.jobs",
}
_PACKAGES = ("evaluate", "sandbox", "train")  # that can be called; see hone.utils.callable_package
__all__ = [*sorted((*_MODULES, *_PACKAGES)), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"hone.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'hone' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hone.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
