"""The named mutants of `make mutants` match the code."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = tomllib.loads((ROOT / "tests" / "mutants_named.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", NAMED, ids=lambda mutant: mutant["name"])
def test_named_mutant_changes_one_place(mutant: dict[str, str]):
    assert (ROOT / mutant["file"]).read_text().count(mutant["text"]) == 1
