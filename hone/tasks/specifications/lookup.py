"""Specifications of rows, read from the data files and from columns of the rows themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from hone.tasks.rows import record, text, texts
from hone.tasks.specifications.record import ENVIRONMENT_FILE, REQUIREMENTS_FILE, Specification

_FILES = ("swe-bench", "swe-gym", "swe-smith")
_MIRROR = "swesmith/"  # repositories of SWE-smith's rows are mirrors: swesmith/OWNER__NAME.COMMIT


def find_specification(row: Mapping[str, Any], source: str) -> Specification | None:
    """Return the specification of a row, or None where its harness has none for its repository and version.

    Args:
        row: with `repo` and, except for SWE-smith, `version`.
        source: the data set: a format's name, such as "swe-bench".
    Raises:
        TaskError: the `install_config` of a row of SWE-rebench is no object, or its fields have other types.
    """
    repo, version = row.get("repo"), row.get("version")
    if not isinstance(repo, str):
        return None
    if source == "swe-rebench":
        return _of_install_config(row, repo)
    if source == "swe-smith":
        return _of_mirror(repo)
    if not isinstance(version, str):
        return None
    # SWE-Gym's raw rows and its copies of other sets also have repositories of SWE-bench
    found = (_table(name).get((repo.lower(), version)) for name in dict.fromkeys((source, *_FILES[:2])))
    return next(filter(None, found), None)


def parser_of(repo: str) -> str | None:
    """Return the harness's parser for a repository of SWE-bench or SWE-Gym, whatever its version; or None."""
    for name in _FILES[:2]:
        for (owner, _), specification in _table(name).items():
            if owner == repo.lower():
                return specification.parser or None
    return None


def is_other_language(repo: str) -> bool:
    """Return whether a repository of SWE-bench is not in Python: its rows need a script and a parser."""
    return repo in _document("swe-bench")["not_python"]


def image_name(source: str, identifier: str) -> str | None:
    """Return the image of an instance by the rule of its data set, without registry; None without a rule."""
    if source == "swe-rebench":
        return f"swerebench/sweb.eval.x86_64.{identifier.replace('__', '_1776_')}:latest".lower()
    if source not in _FILES:
        return None
    document = _document(source)
    return document["image"].format(id=identifier.replace("__", document["double_underscore"])).lower()


def _of_mirror(repo: str) -> Specification | None:
    name, _, commit = repo.removeprefix(_MIRROR).rpartition(".")
    wanted = name.replace("__", "/", 1).lower()
    return next(
        (
            specification
            for (owner, full), specification in _table("swe-smith").items()
            if owner == wanted and commit and full.startswith(commit)
        ),
        None,
    )


def _of_install_config(row: Mapping[str, Any], repo: str) -> Specification | None:
    """Return the specification in the column `install_config` of SWE-rebench; its keys are SWE-bench's."""
    if row.get("install_config") is None:
        return None
    config = record(row, "install_config")
    packages = text(config, "packages", "")
    paths = {REQUIREMENTS_FILE: "reqs_path", ENVIRONMENT_FILE: "env_yml_path"}
    return Specification(
        source="SWE-rebench/SWE-bench-fork 4.0.3, column install_config",
        data_set="swe-rebench",
        repo=repo,
        version=text(row, "version", ""),
        test_command=text(config, "test_cmd", ""),
        parser=text(config, "log_parser", "parse_log_pytest"),
        python=text(config, "python", ""),
        packages=packages,
        packages_files=texts(config, paths[packages]) if packages in paths else (),
        own_python=config.get("no_use_env") is True,
        pip_packages=texts(config, "pip_packages"),
        pre_install=texts(config, "pre_install"),
        install=text(config, "install", ""),
        eval_commands=texts(config, "eval_commands"),
        pinned=tuple(line.strip() for line in text(row, "requirements", "").splitlines() if line.strip()),
    )


@cache
def _document(name: str) -> dict[str, Any]:
    return json.loads(
        (resources.files("hone.tasks.specifications") / "data" / f"{name}.json").read_text("utf-8")
    )


@cache
def _table(name: str) -> dict[tuple[str, str], Specification]:
    """Return the specifications of a file by repository, in lower case, and version."""
    if name not in _FILES:
        return {}
    document = _document(name)
    table: dict[tuple[str, str], Specification] = {}
    for repo, about in document["repositories"].items():
        files = {
            REQUIREMENTS_FILE: tuple(about.get("requirements_files", ())),
            ENVIRONMENT_FILE: tuple(about.get("environment_files", ())),
        }
        for fields in about["specifications"]:
            shared: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in fields.items()
                if name != "versions"
            }
            for version in fields["versions"]:
                table[repo.lower(), version] = Specification(
                    source=document["source"],
                    data_set=name,
                    repo=repo,
                    version=version,
                    parser=about.get("parser", ""),
                    packages_files=files.get(fields.get("packages", ""), ()),
                    **shared,
                )
    return table
