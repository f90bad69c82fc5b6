"""The record of one specification."""

from __future__ import annotations

from dataclasses import dataclass

REQUIREMENTS_FILE, ENVIRONMENT_FILE = "requirements.txt", "environment.yml"  # values of `packages`


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """How a harness installs one version of a repository and runs its tests.

    Commands are lines of bash. The harness runs `pre_install` and `install` in the repository, in a conda
    environment, when it builds the image; and `install` again before the tests of each patch.
    """

    source: str  # package and version, such as "swebench 4.1.0"
    data_set: str  # "swe-bench", "swe-gym", "swe-smith" or "swe-rebench"
    repo: str  # "owner/name"
    version: str  # of the repository, as rows name it; of a profile of SWE-smith, the commit
    test_command: str = (
        ""  # without files; `test_directives` gives those of a row; empty: the harness has none
    )
    parser: str = ""  # of the log; "pytest" where test ids are pytest's own; empty: the harness has none
    python: str = ""  # such as "3.9"; empty where an environment.yml says it
    packages: str = ""  # of conda, as on its command line; or REQUIREMENTS_FILE, or ENVIRONMENT_FILE
    packages_files: tuple[str, ...] = ()  # paths of that file in the repository; the first that exists counts
    environment_commands: tuple[str, ...] = ()  # edit that file before it is used
    own_python: bool = False  # the environment has `python`, whatever its environment.yml says
    pip_packages: tuple[str, ...] = ()  # as on pip's command line, installed after `packages`
    pre_install: tuple[str, ...] = ()
    install: str = ""
    eval_commands: tuple[str, ...] = ()  # before the tests, such as exports of variables
    pinned: tuple[
        str, ...
    ] = ()  # "name==version" of all that the harness's environment has, where a row says it
