"""What the commands of a specification install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.python.steps import Step, edit_tree, installs_project, steps_of
from hone.tasks.specifications import ENVIRONMENT_FILE, REQUIREMENTS_FILE, Specification

LAYERS = {"source": "x 1", "data_set": "swe-bench", "repo": "a/b", "version": "1", "test_command": "pytest"}


def specification(**fields: Any) -> Specification:
    return Specification(**LAYERS, parser="parse_log_pytest", **fields)


def test_steps_have_the_order_of_the_harness(tmp_path: Path):
    made = steps_of(
        specification(
            packages="'numpy==1.19.2' python pandas<2 scipy=1.5",
            pip_packages=("cython", "setuptools==68.0.0"),
            install="python -m pip install -v --no-build-isolation -e '.[test,dev]'",
        ),
        tmp_path,
    )
    assert made == [
        Step(requirements=("numpy==1.19.2", "pandas<2", "scipy==1.5.*"), official=True),
        Step(requirements=("cython", "setuptools==68.0.0"), official=True),
        Step(official=True, project=True, extras=("test", "dev")),
    ]


def test_files_of_the_repository_are_read(tmp_path: Path):
    (tmp_path / "tests.txt").write_text(
        "-e .\n-r more.txt\nsix>=1 ; python_version<'3'\n.[x]\n--pre\n# note\n./local\n"
    )
    (tmp_path / "more.txt").write_text("attrs==1\n")
    files = ("absent.txt", "tests.txt")
    (step, _) = steps_of(
        specification(packages=REQUIREMENTS_FILE, packages_files=files, install="python setup.py install"),
        tmp_path,
    )
    assert step == Step(requirements=("attrs==1", "six>=1 ; python_version<'3'"))


def test_packages_of_conda_may_be_missing_elsewhere(tmp_path: Path):
    text = "dependencies:\n- python=3.10\n- conda-forge::iris>=2\n- numpy=1.17\n- pip:\n  - codecov\n"
    (tmp_path / "environment.yml").write_text(text)
    (step,) = steps_of(
        specification(packages=ENVIRONMENT_FILE, packages_files=("environment.yml",)), tmp_path
    )
    assert step == Step(requirements=("scitools-iris>=2", "numpy==1.17.*", "codecov"), optional=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"install": "make install"}, "`make install` runs in its image only"),
        ({"packages": REQUIREMENTS_FILE, "packages_files": ("a.txt",)}, "what a.txt requires"),
    ],
)
def test_command_without_an_equivalent_is_refused(fields: dict[str, Any], reason: str, tmp_path: Path):
    with pytest.raises(TaskError, match=reason):
        steps_of(specification(**fields), tmp_path)


def test_only_commands_that_edit_the_tree_run(tmp_path: Path):
    (tmp_path / "setup.py").write_text("jinja2>=2.3\n")
    others = (
        "apt-get update && apt-get install -y locales",
        "sed -i 's/a/b/' /etc/locale.gen",
        "sed -i 's/a/b/' ../outside",
        "sed -n p setup.py > copy",
        "grep x setup.py | sh",
        "sed -i $(touch ran) setup.py",
    )
    edits = (
        "sed -i 's/jinja2>=2.3/jinja2<3.0/' setup.py",
        "grep -q none setup.py && sed -i s/x/y/ no || sed -i s/3/4/ setup.py",
    )
    assert edit_tree(specification(pre_install=(*edits, *others)), tmp_path) == list(others)
    assert (tmp_path / "setup.py").read_text() == "jinja2<4.0\n"
    assert [path.name for path in tmp_path.iterdir()] == ["setup.py"]


@pytest.mark.parametrize(
    ("command", "installs"),
    [
        ("python -m pip install -e .", True),
        ("  pip install '.[dev]' --verbose", True),
        ("python setup.py build_ext --inplace", True),
        ("python -m pip install pytest", False),
        ("git status", False),
    ],
)
def test_command_that_installs_the_project_is_known(command: str, installs: bool):
    assert installs_project(command) is installs
