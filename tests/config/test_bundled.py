"""The recipes inside the package are found by name, from every directory."""

from pathlib import Path

import pytest

from hone.config import ConfigError, make_plan, resolve
from hone.config.bundled import bundled_files, bundled_recipes

TINY = [recipe.name for recipe in bundled_recipes() if recipe.name.endswith("-tiny")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without recipes, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["quickstart", "debugger-0.6b"])
def test_recipe_is_found_by_its_name(name: str):
    settings = resolve(name)
    assert settings == resolve(bundled_files()[name])
    assert settings.run_dir == Path("runs") / name


def test_file_of_the_same_name_comes_first(elsewhere: Path):
    (elsewhere / "quickstart").write_text("[train]\nsteps = 7\n")
    assert resolve("quickstart").train.steps == 7


def test_directory_of_the_same_name_hides_no_recipe(elsewhere: Path):
    (elsewhere / "quickstart").mkdir()
    assert resolve("quickstart") == resolve(bundled_files()["quickstart"])


def test_own_recipe_extends_a_bundled_one(elsewhere: Path):
    (elsewhere / "mine.toml").write_text('extends = "swe-8b-tiny"\n[train]\nsteps = 7\n')
    expected = resolve("swe-8b-tiny", ["train.steps=7", "run_dir=runs/mine"])
    assert resolve("mine.toml") == expected


@pytest.mark.parametrize("name", ["swe-8b-prm", "debugger-14b-rewrite", "qwen-code-30b-tiny"])
def test_copy_of_a_recipe_means_the_same_anywhere(name: str, elsewhere: Path):
    copy = elsewhere / "folder" / f"{name}.toml"
    copy.parent.mkdir()
    copy.write_text(bundled_files()[name].read_text())
    assert resolve(copy) == resolve(name)


@pytest.mark.parametrize("name", TINY)
def test_tiny_recipe_needs_no_file_of_the_current_directory(name: str):
    plan = make_plan(resolve(name), "train")
    assert (plan.refusal, plan.missing) == ("", ())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("swe8b", "there is no recipe swe8b: did you mean swe-8b or"),
        ("recipes/swe-8b.toml", "there is no recipe recipes/swe-8b.toml: did you mean swe-8b?"),
        ("zzz", "there is no recipe zzz: pass the path of a TOML file, or a name of `hone recipes list`"),
    ],
)
def test_unknown_recipe_names_the_nearest(given: str, said: str):
    with pytest.raises(ConfigError) as error:
        resolve(given)
    assert str(error.value).startswith(said)


def test_unknown_parent_is_an_error_with_its_line(elsewhere: Path):
    (elsewhere / "mine.toml").write_text('extends = "swe-9b"\n')
    with pytest.raises(ConfigError, match=r"mine.toml, line 1: extends 'swe-9b', which does not exist"):
        resolve("mine.toml")
