"""The resolved copy of a run's settings, and what makes a run another run."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.config import RunSettings, dump, fingerprint, resolve, walk
from hone.config.written import SPEED_ONLY
from hone.outcomes import Outcome
from hone.settings import Settings

MASKABLE = [Outcome.TURN_LIMIT, Outcome.CONTEXT_LIMIT, Outcome.TIME_LIMIT, Outcome.TOKEN_LIMIT]
SINGLE = [setting.path for setting in walk(RunSettings) if setting.group is None]


def replaced(settings: Settings, path: str, value: Any) -> Any:
    """A copy with one setting changed, unchecked."""
    name, _, rest = path.partition(".")
    inner = getattr(settings, name)
    return settings.model_copy(update={name: replaced(inner, rest, value) if rest else value})


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\npath = "some/model"\n[train.algorithm]\nname = "step_wise"\n'
        '[judge]\nenabled = true\nmodel = { path = "some/judge" }\n'
    )
    return resolve(path)


def read_back(text: str) -> RunSettings:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(text, encoding="utf-8")
        return resolve(path)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(
    st.fixed_dictionaries(
        {"run_dir": texts.map(lambda text: str(Path(text)))},
        optional={
            "model": st.fixed_dictionaries({"path": texts.map(lambda text: str(Path(text)))}),
            "tasks": st.fixed_dictionaries({}, optional={"source": texts, "seed": st.integers(-9, 9)}),
            "rollout": st.fixed_dictionaries(
                {},
                optional={
                    "rewards": st.dictionaries(
                        st.sampled_from(["resolved", "no_patch", "tampered"]), st.floats(-2, 2)
                    ),
                    "masked": st.sets(st.sampled_from([outcome.value for outcome in MASKABLE])),
                },
            ),
            "train": st.fixed_dictionaries(
                {},
                optional={
                    "algorithm": st.just({"name": "rloo"}),
                    "optimizer": st.fixed_dictionaries({"lr": st.floats(1e-9, 1)}),
                    "steps": st.integers(1, 10**9),
                },
            ),
        },
    )
)
def test_the_resolved_copy_reads_back_as_the_same_settings(values: dict[str, Any]):
    settings = RunSettings.model_validate(values)
    again = read_back(dump(settings))
    assert again == settings
    assert fingerprint(again) == fingerprint(settings)
    assert dump(again) == dump(settings)


def test_the_resolved_copy_shows_every_setting(settings: RunSettings):
    text = dump(settings)
    assert [path for path in SINGLE if f"{path.rpartition('.')[2]} = " not in text] == []


def test_no_setting_can_be_none_unless_that_is_its_default():
    """TOML has no null: a resolved copy could not say that a setting with another default was taken away."""
    odd = [s.path for s in walk(RunSettings) if "None" in str(s.info.annotation) and s.default is not None]
    assert odd == []


@pytest.mark.parametrize("path", SINGLE)
def test_the_fingerprint_counts_exactly_what_changes_results(settings: RunSettings, path: str):
    speed_only = any(path == name or path.startswith(name + ".") for name in SPEED_ONLY)
    uncounted = speed_only or path == "train.steps"
    assert (fingerprint(replaced(settings, path, "changed")) == fingerprint(settings)) == uncounted


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("tasks.seed", True),
        ("sampling.temperature", True),
        ("sandbox.memory_mib", True),
        ("rollout.time_limit_s", True),
        ("run_dir", False),
        ("engine.max_batch", False),
        ("rollout.concurrent_episodes", False),
        ("train.batch.micro_batch_tokens", False),
        ("train.checkpoint.every", False),
    ],
)
def test_speed_is_not_a_result(settings: RunSettings, path: str, counts: bool):
    assert (fingerprint(replaced(settings, path, "changed")) != fingerprint(settings)) == counts


def test_more_steps_are_the_same_run_only_while_the_learning_rate_does_not_depend_on_them(
    settings: RunSettings,
):
    cosine = replaced(settings, "train.optimizer.schedule", "cosine")
    assert fingerprint(replaced(settings, "train.steps", 9)) == fingerprint(settings)
    assert fingerprint(replaced(cosine, "train.steps", 9)) != fingerprint(cosine)


def test_a_default_that_is_written_out_is_the_same_run(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[tasks]\nseed = 0\n")
    (tmp_path / "b.toml").write_text("[train]\nmax_staleness = 0\n")
    assert fingerprint(resolve(tmp_path / "a.toml")) == fingerprint(resolve(tmp_path / "b.toml"))


@pytest.mark.parametrize("setting", ["agent.prompts", "agent.program"])
def test_other_prompts_under_the_same_name_are_another_run(
    settings: RunSettings, tmp_path: Path, setting: str
):
    file = tmp_path / "file"
    file.write_text("agent: {}")
    named = replaced(settings, setting, str(file))
    before = fingerprint(named)
    assert fingerprint(named) == before
    file.write_text("agent: {step_limit: 3}")
    assert fingerprint(named) != before


def test_a_fingerprint_of_some_groups_is_blind_to_the_others(settings: RunSettings):
    other = replaced(settings, "train.loss.clip_low", 0.1)
    assert fingerprint(other, {"tasks", "sft"}) == fingerprint(settings, {"tasks", "sft"})
    assert fingerprint(other, {"train"}) != fingerprint(settings, {"train"})


def test_settings_that_only_change_speed_exist():
    every = {setting.path for setting in walk(RunSettings)}
    assert every >= SPEED_ONLY
