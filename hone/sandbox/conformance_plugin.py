"""The options of `pytest --pyargs hone.sandbox.conformance`: a pytest plugin.

pytest imports it in every project, so it is light and outside of the package of checks. Their modules must
not be imported before pytest rewrites their assertions.
"""

from __future__ import annotations

import os

import pytest

SUITE = "hone.sandbox.conformance"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add the options only if the command line names the suite."""
    if not any(SUITE in argument.replace(os.sep, ".") for argument in args):
        return
    pytest.register_assert_rewrite(SUITE)
    group = parser.getgroup("conformance", "conformance suite of sandbox providers")
    group.addoption(
        "--provider",
        default="namespaces",
        metavar="NAME",
        help="namespaces, docker, pool, or MODULE:FUNCTION that returns a provider",
    )
    group.addoption(
        "--sandbox-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the section [sandbox] of a recipe, such as docker_url=unix:///run/docker.sock",
    )
    group.addoption(
        "--image",
        default="host",
        metavar="IMAGE",
        help="image of every sandbox; needs bash, git, python3 with pytest, and root as its user",
    )
