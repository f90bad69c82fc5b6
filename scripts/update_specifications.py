"""Write the official specifications of a data set from the package of its harness.

    PYTHON scripts/update_specifications.py swe-bench
    PYTHON scripts/update_specifications.py swe-smith
    PYTHONPATH=CHECKOUT PYTHON scripts/update_specifications.py swe-gym --commit 242429c

PYTHON is an interpreter in which the harness is installed: swebench 4.1.0, swesmith 0.0.9, or for SWE-Gym a
checkout of its fork, SWE-Gym/SWE-Bench-Fork. With --print, the file goes to the standard output. Besides the
harness, only the standard library is needed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "hone" / "tasks" / "specifications" / "data"
# Of the harness's keys, those that decide how the tests of a repository are installed and run.
KEYS = {
    "python": "python",
    "packages": "packages",
    "env_patches": "environment_commands",
    "no_use_env": "own_python",
    "pip_packages": "pip_packages",
    "pre_install": "pre_install",
    "install": "install",
    "eval_commands": "eval_commands",
    "test_cmd": "test_command",
}
# Parsers of SWE-Gym's fork, and the parser of the swebench package that names pytest's tests alike.
PARSERS = {"parse_log_pytest_pydantic": "parse_log_pytest"}
ACTIVATE = "source /opt/miniconda3/bin/activate; conda activate testbed; "  # before SWE-smith's commands
Fields = dict[str, Any]


def main() -> None:
    """Write or print one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data_set", choices=list(MAKERS))
    parser.add_argument("--commit", default="", help="Commit of the checkout, where there is no version.")
    parser.add_argument("--print", action="store_true", help="Print the file instead of writing it.")
    given = parser.parse_args()
    text = render(MAKERS[given.data_set](given.commit))
    if given.print:
        sys.stdout.write(text)
    else:
        (DATA / f"{given.data_set}.json").write_text(text, encoding="utf-8")


def render(document: Mapping[str, Any]) -> str:
    """Return the document as JSON, a specification per line."""
    head = {name: value for name, value in document.items() if name != "repositories"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    repositories: list[str] = []
    for repository, about in sorted(document["repositories"].items()):
        inside = [f"   {json.dumps(each)}" for each in about["specifications"]]
        fields = [
            f"   {json.dumps(name)}: {json.dumps(value)}"
            for name, value in about.items()
            if name != "specifications"
        ]
        listed = '   "specifications": [\n' + ",\n".join(inside) + "\n   ]"
        repositories.append(f"  {json.dumps(repository)}: {{\n" + ",\n".join([*fields, listed]) + "\n  }")
    return "\n".join(["{", *lines, ' "repositories": {', ",\n".join(repositories), " }", "}"]) + "\n"


def swe_bench(_: str) -> Fields:
    """Return the Python repositories of the swebench package, which has them up to version 4."""
    constants = importlib.import_module("swebench.harness.constants.python")
    endings = importlib.import_module("swebench.harness.constants").MAP_REPO_TO_EXT
    parsers = importlib.import_module("swebench.harness.log_parsers.python").MAP_REPO_TO_PARSER_PY
    return {
        "source": f"swebench {importlib.metadata.version('swebench')}",
        "image": "swebench/sweb.eval.x86_64.{id}:latest",
        "double_underscore": "_1776_",
        "not_python": sorted(repository for repository, ending in endings.items() if ending != "py"),
        "repositories": _repositories(
            constants.MAP_REPO_VERSION_TO_SPECS_PY, parsers, constants, str, _all_repositories
        ),
    }


def swe_gym(commit: str) -> Fields:
    """Return the repositories that SWE-Gym's fork of the swebench package adds."""
    package = importlib.import_module("swebench")
    constants = importlib.import_module("swebench.harness.constants")
    parsers = importlib.import_module("swebench.harness.log_parsers").MAP_REPO_TO_PARSER

    def added(repository: str) -> bool:
        return repository not in _SWE_BENCH

    return {
        "source": f"SWE-Gym/SWE-Bench-Fork {package.__version__} at {commit}",
        "image": "xingyaoww/sweb.eval.x86_64.{id}:latest",
        "double_underscore": "_s_",
        "repositories": _repositories(
            constants.MAP_REPO_VERSION_TO_SPECS, parsers, constants, str.lower, added
        ),
    }


_SWE_BENCH = frozenset((
    "astropy/astropy", "dbt-labs/dbt-core", "django/django", "marshmallow-code/marshmallow",
    "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask", "psf/requests", "pvlib/pvlib-python",
    "pydata/xarray", "pydicom/pydicom", "pylint-dev/astroid", "pylint-dev/pylint", "pytest-dev/pytest",
    "pyvista/pyvista", "scikit-learn/scikit-learn", "sphinx-doc/sphinx", "sqlfluff/sqlfluff",
    "swe-bench/humaneval", "sympy/sympy",
))  # fmt: skip


def _all_repositories(repository: str) -> bool:
    return repository != "swe-bench/humaneval"  # it has no repository


def _repositories(
    specs: Mapping[str, Mapping[str, Fields]],
    parsers: Mapping[str, Any],
    constants: Any,
    key: Callable[[str], str],
    wanted: Callable[[str], bool],
) -> dict[str, Fields]:
    requirements = {key(name): value for name, value in constants.MAP_REPO_TO_REQS_PATHS.items()}
    environments = {key(name): value for name, value in constants.MAP_REPO_TO_ENV_YML_PATHS.items()}
    found: dict[str, Fields] = {}
    for repository, versions in specs.items():
        if not wanted(repository):
            continue
        about: Fields = {}
        if repository in parsers:
            about["parser"] = PARSERS.get(parsers[repository].__name__, parsers[repository].__name__)
        if repository in requirements:
            about["requirements_files"] = requirements[repository]
        if repository in environments:
            about["environment_files"] = environments[repository]
        found[repository] = {**about, "specifications": _grouped(versions.items())}
    return found


def _grouped(versions: Iterable[tuple[str, Fields]]) -> list[Fields]:
    """Return each different specification once, with the versions that have it."""
    groups: dict[str, Fields] = {}
    for version, spec in versions:
        fields = {ours: spec[theirs] for theirs, ours in KEYS.items() if spec.get(theirs)}
        group = groups.setdefault(json.dumps(fields), {"versions": [], **fields})
        group["versions"].append(version)
    return list(groups.values())


def swe_smith(_: str) -> Fields:
    """Return the Python profiles of the swesmith package; the version of a profile is its commit."""
    python = importlib.import_module("swesmith.profiles.python")
    found: dict[str, Fields] = {}
    for profile in vars(python).values():
        if not isinstance(profile, type) or not issubclass(profile, python.PythonProfile):
            continue
        if profile is python.PythonProfile:
            continue
        made = profile()
        command = made.test_cmd
        fields: Fields = {
            "versions": [made.commit],
            "python": made.python_version,
            "pre_install": made.install_cmds[:-1],
            "install": made.install_cmds[-1] if made.install_cmds else "",
            "test_command": command.removeprefix(ACTIVATE),
        }
        about = found.setdefault(f"{made.owner}/{made.repo}", {"specifications": []})
        about["parser"] = _smith_parser(profile, python.PythonProfile)
        about["specifications"].append({name: value for name, value in fields.items() if value})
    return {
        "source": f"swesmith {importlib.metadata.version('swesmith')}",
        "image": "swebench/swesmith.x86_64.{id}:latest",
        "double_underscore": "_1776_",
        "repositories": found,
    }


def _smith_parser(profile: type, base: type) -> str:
    """Return "pytest" for a profile whose tests have pytest's own ids, else a name of its own."""
    log = "a/t.py::test_a PASSED [ 50%]\nPASSED a/t.py::test_b\n[gw0] PASSED a/t.py::test_c\n"
    made: Any = profile()
    ids = {"a/t.py::test_a", "a/t.py::test_b", "a/t.py::test_c"}
    same_files = profile.get_test_files is base.get_test_files  # type: ignore[attr-defined]
    return "pytest" if same_files and set(made.log_parser(log)) & ids else f"swesmith.{profile.__name__}"


MAKERS: dict[str, Callable[[str], Fields]] = {
    "swe-bench": swe_bench,
    "swe-gym": swe_gym,
    "swe-smith": swe_smith,
}

if __name__ == "__main__":
    main()
