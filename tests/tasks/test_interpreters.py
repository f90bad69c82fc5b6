"""The interpreters of a machine, by the layouts of their managers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.python.interpreters import Interpreter, find_interpreter, find_interpreters, own_interpreter


def program(path: Path, *, executable: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755 if executable else 0o644)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with interpreters of pyenv, uv and conda, and others that are none."""
    home = tmp_path / "home"
    for version in ("3.9.1", "3.9.18", "3.10.13"):
        program(home / ".pyenv" / "versions" / version / "bin" / "python")
    program(home / ".pyenv" / "versions" / "pypy3.9-7.3.9" / "bin" / "python")
    program(home / ".pyenv" / "versions" / "3.8.2" / "bin" / "python", executable=False)
    uv = home / ".local" / "share" / "uv" / "python"
    program(uv / "cpython-3.12.1-linux-x86_64-gnu" / "bin" / "python3")
    (uv / "cpython-3.12-linux-x86_64-gnu").symlink_to(uv / "cpython-3.12.1-linux-x86_64-gnu")
    testbed = home / "miniconda3" / "envs" / "testbed"
    program(testbed / "bin" / "python")
    (testbed / "conda-meta").mkdir()
    (testbed / "conda-meta" / "python-3.7.16-h7a1cb2a_0.json").write_text("{}")
    return home


def found_in(home: Path, *system: Path) -> dict[str, str]:
    return {each.version: each.source for each in find_interpreters(home, {}, system)[1:]}


def test_interpreters_of_every_manager_are_found(home: Path, tmp_path: Path):
    program(tmp_path / "usr" / "bin" / "python3.11")
    program(tmp_path / "usr" / "bin" / "python3.11-config")
    assert found_in(home, tmp_path / "usr") == {
        "3.9.1": "pyenv", "3.9.18": "pyenv", "3.10.13": "pyenv",
        "3.12.1": "uv", "3.7.16": "conda", "3.11": "system",
    }  # fmt: skip


def test_variables_name_other_directories(home: Path, tmp_path: Path):
    env = {"PYENV_ROOT": str(home / ".pyenv"), "UV_PYTHON_INSTALL_DIR": str(home / ".local/share/uv/python")}
    found = find_interpreters(tmp_path / "nobody", env, ())
    assert {each.source for each in found} == {"hone", "pyenv", "uv"}


def test_newest_release_of_a_version_is_chosen(home: Path):
    known = find_interpreters(home, {}, ())
    chosen = find_interpreter("3.9", known)
    assert (chosen.version, chosen.path) == ("3.9.18", home / ".pyenv/versions/3.9.18/bin/python")
    assert find_interpreter("3.9.1", known).minor == "3.9"


def test_interpreter_of_hone_comes_first():
    own = own_interpreter()
    newer = Interpreter(version=f"{own.minor}.99", path=Path("/x"), prefix=Path("/"), source="pyenv")
    assert find_interpreter(own.minor, (newer, own)) == own
    assert find_interpreter("", ()) == own


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("3.8", "does not have: install it"),
        ("3.5", "with Python 3.6 or later"),
        ("2.7", "with Python 3.6 or later"),
        ("pypy", "with Python 3.6 or later"),
    ],
)
def test_missing_version_is_refused_by_name(python: str, message: str, home: Path):
    with pytest.raises(TaskError, match=f"Python {python}.*{message}"):
        find_interpreter(python, find_interpreters(home, {}, ()))
