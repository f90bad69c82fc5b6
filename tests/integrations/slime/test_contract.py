"""Hone's hooks against slime itself, in a checkout that HONE_TEST_SLIME_CHECKOUT names."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hone.config import dump
from tests.integrations.rollouts.examples import make_recipe
from tests.integrations.slime.stand_in import Sample

CHECKOUT = os.environ.get("HONE_TEST_SLIME_CHECKOUT", "")
PYTHON = os.environ.get("HONE_TEST_SLIME_PYTHON", sys.executable)
ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not CHECKOUT, reason="HONE_TEST_SLIME_CHECKOUT names no checkout of slime"),
]
FIELDS = """
import dataclasses, json
from slime.utils.types import Sample
fields = [field.name for field in dataclasses.fields(Sample)]
print("FOUND " + json.dumps([fields, [status.value for status in Sample.Status]]))
"""


def run(*arguments: str | Path) -> Any:
    path = os.pathsep.join([CHECKOUT, str(ROOT)])
    done = subprocess.run(
        [PYTHON, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def test_stand_in_has_exactly_slimes_fields() -> None:
    fields, statuses = run("-c", FIELDS)

    assert fields == [field.name for field in dataclasses.fields(Sample)]
    assert statuses == [status.value for status in Sample.Status]


@pytest.mark.sandbox
def test_slimes_rollout_function_gets_graded_groups(tmp_path: Path) -> None:
    settings = make_recipe(
        tmp_path,
        groups_per_step=2,
        tasks={"train": 6, "test": 0, "unseen": 0},
        rollout={"group_size": 2, "concurrent_episodes": 4},
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(dump(settings))

    script = Path(__file__).parent / "in_slime" / "rollout.py"
    first, second, resumed = run(script, recipe, tmp_path / "saved")

    for number, found in enumerate((first, second)):
        assert found["lengths"] is True
        assert len(found["groups"]) == 4
        assert found["versions"] == [str(number + 1)]
        assert found["metrics"]["hone/rollouts"] == 4
        for group in set(found["groups"]):
            of_group = [i for i, each in enumerate(found["groups"]) if each == group]
            rewards = [found["rewards"][i] for i in of_group]
            advantages = [found["advantages"][i] for i in of_group]
            assert rewards in ([1.0, -1.0], [-1.0, 1.0])
            assert advantages == pytest.approx([reward / 2**0.5 for reward in rewards])
    assert set(first["groups"]).isdisjoint(second["groups"])
    assert resumed["next"] == 6  # each rollout has taken one group more than it kept
