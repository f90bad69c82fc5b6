"""`import hone`: light, typed, and the same in any order of imports."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hone

HEAVY = ("torch", "transformers", "pydantic", "pyarrow", "numpy", "rich", "typer", "asyncio", "starlette")
CHECKED = ("load_tasks", "sandbox", "run", "grade", "evaluate", "train", "read_run", "__version__")

PUBLIC: list[str] = vars(hone)["__all__"]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_import_loads_no_library():
    code = f"import sys, hone; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.slow
def test_import_loads_no_other_module_of_hone():
    assert python("import sys, hone; print([m for m in sys.modules if m.startswith('hone')])") == "['hone']"


def test_public_names_exist_and_are_documented():
    assert set(CHECKED) <= set(PUBLIC) <= set(dir(hone))
    for name in PUBLIC:
        assert getattr(hone, name).__doc__, name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'sandboxes'"):
        _ = hone.sandboxes  # pyright: ignore[reportAttributeAccessIssue]


def test_stub_has_the_names_of_the_module():
    stub = ast.parse(Path(hone.__file__).with_suffix(".pyi").read_text())
    names = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(PUBLIC)


@pytest.mark.parametrize("name", ["evaluate", "sandbox", "train"])
def test_package_is_called_as_the_function_of_its_name(name: str):
    from hone.front_door import jobs, sandboxes

    function = {"evaluate": jobs.evaluate, "sandbox": sandboxes.sandbox, "train": jobs.train}[name]
    package: Any = getattr(hone, name)
    assert package is sys.modules[f"hone.{name}"]
    assert inspect.signature(package) == inspect.signature(function)
    assert function.__doc__ is not None
    assert "Raises:" in function.__doc__
