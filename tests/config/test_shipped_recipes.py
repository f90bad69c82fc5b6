"""The recipes that come with Hone: their hardware, their plans, and what is said on a smaller machine."""

from pathlib import Path

import pytest

from benchmarks.plans import MACHINES, RECIPES, own_machine, own_plan, recipes
from hone.config import dump, make_plan, resolve
from hone.config.device_plan import plan_devices
from hone.config.fitting import refusal, suggest
from hone.utils.devices import Devices, equal_devices

SHIPPED = recipes()
# fits: 1 x 24 GiB, 1 x 80 GiB, 8 x 80 GiB, 8 machines of 8 x 80 GiB
FITS = {
    "quickstart": (True, True, True, True),
    "quickstart-tinker": (True, True, True, True),
    "debugger-0.6b": (True, True, True, True),
    "debugger-4b-lora": (True, True, True, True),
    "debugger-8b-lora": (False, True, True, True),
    "debugger-4b": (False, False, True, True),
    "debugger-8b": (False, False, True, True),
    "debugger-14b": (False, False, True, True),
    "debugger-14b-rewrite": (False, False, True, True),
    "swe-8b-1node": (False, False, True, True),
    "swe-8b": (False, False, False, True),
    "swe-8b-prm": (False, False, False, True),
    "swe-32b-4nodes": (False, False, False, True),
    "swe-32b": (False, False, False, True),
    "qwen-code-30b": (False, False, False, True),
}


def test_every_recipe_is_in_the_table():
    assert {path.stem for path in SHIPPED} == set(FITS)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipe_resolves_and_its_dump_is_equal(path: Path, tmp_path: Path):
    settings = resolve(path)
    (tmp_path / "config.toml").write_text(dump(settings))
    assert resolve(tmp_path / "config.toml") == settings


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipe_states_its_hardware_and_plan(path: Path):
    comment, plan = own_plan(path)
    assert plan.fits
    assert comment in path.read_text()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipe_starts_on_the_first_of_its_machines(path: Path, monkeypatch: pytest.MonkeyPatch):
    """`hone train` sees one machine; the others of `placement.nodes` are taken to be like it."""
    machine = own_machine(path)[1]
    first = equal_devices(machine.gpus_per_node, 80, host_gib=machine.host_gib)
    monkeypatch.setattr("hone.config.plan.find_devices", lambda: first)
    plan = make_plan(resolve(path), "train")
    assert plan.refusal == ""
    other_ranks = [text for text in plan.missing if text.startswith("the ranks of the other machines")]
    assert bool(other_ranks) == (path.stem in ("swe-8b-prm", "swe-32b-4nodes", "swe-32b"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipe_fits_the_machines_of_the_table(path: Path):
    settings = resolve(path)
    fits = [plan_devices(settings, "train", devices).fits for devices in MACHINES.values()]
    assert tuple(fits) == FITS[path.stem]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_recipe_has_a_tiny_variant_that_fits_a_small_machine(path: Path):
    if path.stem.startswith("quickstart"):
        return
    tiny = resolve(path.with_name(f"{path.stem}-tiny.toml"))
    assert plan_devices(tiny, "train", Devices(gpus=(), host_gib=8.0)).fits
    assert tiny.agent.kind == resolve(path).agent.kind
    assert (tiny.train.lora is None) == (resolve(path).train.lora is None)


@pytest.mark.parametrize("name", ["debugger-8b", "swe-8b"])
def test_recipe_is_refused_in_a_sentence_with_settings_that_fit(name: str):
    text = refusal(resolve(RECIPES / f"{name}.toml"), "train", MACHINES["1 x 80 GiB"])
    assert "\n" not in text
    assert "It fits with" in text
    assert 'train.learner = "in_process"' in text


@pytest.mark.parametrize("name", ["debugger-14b", "swe-8b", "swe-8b-1node"])
def test_suggested_settings_can_be_passed_with_set(name: str):
    path, machine = RECIPES / f"{name}.toml", MACHINES["1 x 80 GiB"]
    changes = suggest(resolve(path), "train", machine)
    sets = [each.replace(" = ", "=", 1) for change in changes for each in change.describe().split(", ")]
    assert plan_devices(resolve(path, sets), "train", machine).fits
