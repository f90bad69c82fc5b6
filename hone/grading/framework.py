"""Which of the modules that run the tests have their source in the repository under test.

A repository that is pytest, or a package that pytest imports, is tested itself, not the copy that is
installed: see `hone/grading/in_sandbox/hone_runner.py`. The answer comes from the tree before the patch, so
that no patch can put a module of its own in the place of the runner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hone.environment import TaskEnvironment
from hone.sandbox.contract import Sandbox

# pytest 3.3 to 9, what it requires, and what those require
MODULES = (
    "_pytest", "atomicwrites", "attr", "attrs", "colorama", "exceptiongroup", "importlib_metadata",
    "iniconfig", "more_itertools", "packaging", "pathlib2", "pkg_resources", "pluggy", "py", "pygments",
    "pyparsing", "pytest", "setuptools", "six", "toml", "tomli", "typing_extensions", "wcwidth", "zipp",
)  # fmt: skip
_FOLDERS = ("", "src", "lib")
_LIST = 'for name; do if [ -e "$name.py" ] || [ -e "$name/__init__.py" ]; then echo "$name"; fi; done'


async def modules_in_tree(sandbox: Sandbox, environment: TaskEnvironment, workdir: str) -> tuple[str, ...]:
    """Return those of MODULES whose source the repository holds. Raises SandboxLost.

    Args:
        sandbox: before the patch is applied.
    """
    below = [str(PurePosixPath(path).relative_to(workdir)) for path in environment.paths]
    folders = dict.fromkeys((*_FOLDERS, *below))
    if environment.layer is not None:
        return await asyncio.to_thread(_in_layer, environment.layer, folders)
    names = [str(PurePosixPath(folder, name)) for folder in folders for name in MODULES]
    found = await sandbox.exec(["/bin/bash", "-p", "-c", _LIST, "list", *names])
    return tuple(sorted({PurePosixPath(line).name for line in found.text.splitlines()}))


def _in_layer(layer: Path, folders: Iterable[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for folder in folders:
        place = layer / folder
        names = {path.name for path in place.iterdir()} if place.is_dir() else set[str]()
        for name in MODULES:
            if f"{name}.py" in names or (name in names and (place / name / "__init__.py").is_file()):
                found.add(name)
    return tuple(sorted(found))
