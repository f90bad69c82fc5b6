"""The resolved copy of a run's settings, and what makes a run another run."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.config import RunSettings, dump, fingerprint, resolve, same_results, walk
from hone.outcomes import Outcome
from hone.settings import Settings

MASKABLE = [Outcome.TURN_LIMIT, Outcome.CONTEXT_LIMIT, Outcome.TIME_LIMIT, Outcome.TOKEN_LIMIT]
SINGLE = [setting.path for setting in walk(RunSettings) if not setting.group]


def replaced(settings: Settings, path: str, value: Any) -> Any:
    """A copy with one setting changed, unchecked."""
    name, _, rest = path.partition(".")
    inner = getattr(settings, name)
    return settings.model_copy(update={name: replaced(inner, rest, value) if rest else value})


def has(settings: Any, path: str) -> bool:
    """Whether the chosen kinds of the settings have this one."""
    for name in path.split("."):
        if name not in getattr(type(settings), "model_fields", ()):
            return False
        settings = getattr(settings, name)
    return True


BASE = (
    '[model]\npath = "some/model"\n[train.loss]\nold_logprobs = "recomputed"\n'
    '[train.lora]\nrank = 8\n[judge]\nenabled = true\nmodel = { path = "some/judge" }\n'
)
TEACHER = '[train.distill]\nenabled = true\nmodel = { path = "some/teacher" }\n'
TEACHER_SERVER = TEACHER + '[train.distill.engine]\ncontext_tokens = 16384\nkind = "vllm"\n'
FINAL = '[train.algorithm]\nreward = "final"\n'
KINDS = (
    '[train.algorithm]\nname = "step_wise"\n' + TEACHER,
    FINAL + 'name = "grpo"\n[train.corrections]\nkind = "truncate"\n',
    FINAL + 'name = "reinforce_pp"\n[train.corrections]\nkind = "mask"\n',
    FINAL + 'name = "dapo"\n',
    FINAL + 'name = "ppo"\n',
    FINAL + 'name = "custom"\nentry_point = "some.module:ALGORITHM"\n',
    FINAL
    + '[agent]\nkind = "debugger"\n[engine]\nkind = "vllm"\n[demonstrations.agent]\nkind = "debugger"\n',
    FINAL + '[agent]\nkind = "blackbox"\nprogram = "qwen-code"\n[judge.engine]\nkind = "sglang"\n'
    '[demonstrations.agent]\nkind = "blackbox"\nprogram = "qwen-code"\n',
    FINAL
    + '[agent]\nkind = "demonstrator"\n[engine]\nkind = "openai"\nurls = ["http://a/v1"]\nmodel_name = "m"\n'
    '[demonstrations.agent]\nkind = "demonstrator"\n',
    FINAL + '[engine]\nkind = "sglang"\nurls = ["http://a"]\n',
    FINAL + '[engine]\nkind = "tinker"\n[judge.engine]\nkind = "tinker"\n',
    FINAL + TEACHER_SERVER,
)
JUDGE_ENDPOINT = (
    '[model]\npath = "some/model"\n[train.algorithm]\nname = "step_wise"\n[judge]\nenabled = true\n'
    '[judge.engine]\nkind = "openai"\nurls = ["http://b/v1"]\nmodel_name = "m"\ncontext_tokens = 16384\n'
)


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> list[RunSettings]:
    """Settings of which each single setting is in at least one."""
    path = tmp_path_factory.mktemp("kinds") / "run.toml"
    found: list[RunSettings] = []
    for text in [*(BASE + kinds for kinds in KINDS), JUDGE_ENDPOINT]:
        path.write_text(text)
        found.append(resolve(path))
    return found


@pytest.fixture
def settings(every_kind: list[RunSettings]) -> RunSettings:
    return every_kind[0]


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
def test_resolved_recipe_round_trips(values: dict[str, Any]):
    settings = RunSettings.model_validate(values)
    again = read_back(dump(settings))
    assert again == settings
    assert fingerprint(again) == fingerprint(settings)
    assert dump(again) == dump(settings)


def test_resolved_copy_shows_every_setting_of_the_chosen_kinds(every_kind: list[RunSettings]):
    for settings in every_kind:
        text = dump(settings)
        own = [path for path in SINGLE if has(settings, path)]
        assert [path for path in own if f"{path.rpartition('.')[2]} = " not in text] == []


def test_only_settings_with_default_none_can_be_none():
    """TOML has no null: a resolved copy could not say that a setting with another default was taken away."""
    odd = [s.path for s in walk(RunSettings) if "None" in str(s.info.annotation) and s.default is not None]
    assert odd == []


@pytest.mark.slow
def test_fingerprint_counts_exactly_the_settings_that_change_results(every_kind: list[RunSettings]):
    before = [fingerprint(settings) for settings in every_kind]
    uncounted: set[str] = set()
    for path in SINGLE:
        number = next(i for i, each in enumerate(every_kind) if has(each, path))
        if fingerprint(replaced(every_kind[number], path, "changed")) == before[number]:
            uncounted.add(path)
    assert uncounted == (set(SINGLE) & set(same_results())) | {"train.steps"}


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
def test_speed_settings_keep_the_fingerprint(settings: RunSettings, path: str, counts: bool):
    assert (fingerprint(replaced(settings, path, "changed")) != fingerprint(settings)) == counts


def test_more_steps_continue_a_run_with_constant_learning_rate(
    settings: RunSettings,
):
    cosine = replaced(settings, "train.optimizer.schedule", "cosine")
    assert fingerprint(replaced(settings, "train.steps", 9)) == fingerprint(settings)
    assert fingerprint(replaced(cosine, "train.steps", 9)) != fingerprint(cosine)


def test_explicit_default_keeps_the_fingerprint(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[tasks]\nseed = 0\n")
    (tmp_path / "b.toml").write_text("[train]\nsteps = 100\n")
    assert fingerprint(resolve(tmp_path / "a.toml")) == fingerprint(resolve(tmp_path / "b.toml"))


@pytest.mark.parametrize(("kind", "setting"), [(0, "agent.prompts"), (7, "agent.program")])
def test_changed_prompt_file_is_another_run(
    every_kind: list[RunSettings], tmp_path: Path, kind: int, setting: str
):
    file = tmp_path / "file"
    file.write_text("agent: {}")
    named = replaced(every_kind[kind], setting, str(file))
    before = fingerprint(named)
    assert fingerprint(named) == before
    file.write_text("agent: {step_limit: 3}")
    assert fingerprint(named) != before
