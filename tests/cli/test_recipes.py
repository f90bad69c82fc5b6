"""`hone recipes`: what comes with Hone, and how a recipe of one's own begins."""

import json

import pytest

from hone.config.bundled import bundled_files
from tests.cli.in_process import hone


def test_every_recipe_is_listed_with_its_hardware():
    listed = {row["name"]: row for row in json.loads(hone("recipes", "list", "--json").stdout)}
    assert set(listed) == {name for name in bundled_files() if "/" not in name}
    assert listed["swe-8b"]["hardware"] == "2 x 8 GPUs of 80 GiB"
    assert listed["debugger-0.6b"]["hardware"] == "1 GPU of 24 GiB"
    assert listed["swe-8b-tiny"]["hardware"] == "CPU"
    assert all(row["description"].endswith(".") for row in listed.values())


def test_list_prints_a_row_for_each_recipe():
    printed = hone("recipes", "list").stdout
    assert all(f" {name} " in printed for name in bundled_files() if "/" not in name)


@pytest.mark.parametrize("name", ["swe-8b", "shared/swe"])
def test_show_prints_the_file_unchanged(name: str):
    assert hone("recipes", "show", name).stdout == bundled_files()[name].read_text()


def test_show_names_the_nearest_recipe():
    done = hone("recipes", "show", "swe-8bb")
    assert done.returncode == 2
    assert "there is no recipe 'swe-8bb': did you mean swe-8b?" in done.stderr


@pytest.mark.parametrize("command", ["list", "show"])
def test_help_has_an_example(command: str):
    assert f"Example: hone recipes {command}" in hone("recipes", command, "--help").stdout
