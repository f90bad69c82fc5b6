"""The suite as tests: `pytest --pyargs hone.sandbox.conformance --provider NAME`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hone.sandbox.conformance import CHECKS, Check
from hone.sandbox.conformance.suite import Run, WithImage, find_provider, open_provider


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a function that runs a check with the provider of the command line."""
    name, image = pytestconfig.option.provider, pytestconfig.option.image
    values = dict(_setting(text) for text in pytestconfig.option.sandbox_set)
    if ":" in name:
        sys.path.insert(0, str(pytestconfig.invocation_params.dir))
    else:
        values.setdefault("state_dir", str(tmp_path_factory.mktemp("state")))
    try:
        provider = find_provider(name, values)
    except (ValueError, ImportError, AttributeError) as error:
        pytest.exit(f"--provider {name}: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    with open_provider(provider if image == "host" else WithImage(provider, image)) as run:
        yield run


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        pytest.exit(f"--sandbox-set takes KEY=VALUE, not {text!r}", returncode=pytest.ExitCode.USAGE_ERROR)
    return key, value


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_provider(check: Check, run: Run) -> None:
    run(check)
