"""Environment variables of published systems as aliases of settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hone.config import ConfigError, dump, make_plan, resolve
from hone.config.plan import Command
from hone.config.run import RunSettings
from hone.config.variables import SYSTEMS
from hone.utils.devices import equal_devices

ROOT = Path(__file__).parents[2]
ALL = {name for system in SYSTEMS.values() for table in system.commands.values() for name in table}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)


def with_variables(
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    command: Command | None = "train",
    *sets: str,
    **variables: str,
) -> RunSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return resolve(ROOT / "recipes" / f"{recipe}.toml", sets, command=command)


def test_variables_of_the_qwen_script_set_the_recipe(monkeypatch: pytest.MonkeyPatch):
    settings = with_variables(
        monkeypatch,
        "qwen-code-30b",
        VLLM_URL="http://gpu:8000/",
        MODEL="Qwen/Qwen3-8B",
        NUM_ROLLOUTS="7",
        ROLLOUT_BATCH_SIZE="3",
        N_SAMPLES="5",
        OUTPUT_DIR="out",
        INSTANCE_FILE="ids.txt",
    )
    assert settings.engine.addresses == ("http://gpu:8000",)
    assert settings.model is not None
    assert str(settings.model.path) == "Qwen/Qwen3-8B"
    assert settings.model.dtype == "bfloat16"
    assert (settings.train.steps, settings.groups_per_step, settings.rollout.group_size) == (7, 3, 5)
    assert (settings.run_dir, settings.tasks.select.ids_file) == (Path("out"), Path("ids.txt"))


def test_variables_of_the_remote_docker_scripts_set_the_recipe(monkeypatch: pytest.MonkeyPatch):
    settings = with_variables(
        monkeypatch,
        "swe-8b-prm",
        SWE_ENV_SERVER_PORT="18091",
        SWE_EXEC_SERVER_URLS="http://a:5000,http://b:5000",
        SWE_MAX_CONCURRENT="12",
        SWE_ROLLOUT_TIMEOUT="900",
        SWE_PRM_MAX_CONCURRENCY="9",
        SWE_CONTAINER_MEMORY="6g",
        SWE_STRICT_NO_TEST_PATCH="1",
        OPENAI_BASE_URL="auto",
        HF_CKPT="models/m",
        REF_LOAD="models/m",
        EXPORT_ROOT="export",
        PROMPT_DATA="train.jsonl",
        DEBUG_MODE="1",
    )
    assert settings.sandbox.pool_url == "http://localhost:18091"
    assert settings.sandbox.memory_mib == 6144
    assert (settings.rollout.concurrent_episodes, settings.rollout.time_limit_s) == (12, 900.0)
    assert settings.judge.concurrency == 9
    assert settings.engine.addresses[0] == "http://engine-0:8001"
    assert settings.run_dir == Path("export/ckpt/swe-8b-prm")
    assert (settings.tasks.source, settings.rollout.group_size, settings.train.steps) == (
        "train.jsonl",
        2,
        80,
    )


def test_variables_of_the_evaluation_script_set_an_evaluation(monkeypatch: pytest.MonkeyPatch):
    settings = with_variables(
        monkeypatch,
        "swe-8b",
        "eval",
        EVAL_MODEL_PATH="Qwen/Qwen3-4B",
        EVAL_TP="4",
        EVAL_GPU_IDS="0,1,2,3",
        PROMPT_DATA="eval.jsonl",
        MAX_INSTANCES="20",
        MAX_CONCURRENT="8",
        MAX_TOKENS="8192",
        STEP_LIMIT="25",
        TEMPERATURE="0",
    )
    assert (settings.engine.managed, settings.placement.engine) == (True, ((0, 1, 2, 3),))
    assert settings.tasks.evaluation == Path("eval.jsonl")
    assert (settings.evaluate.split, settings.evaluate.slice) == ("test", ":20")
    assert (settings.agent.turn_limit, settings.sampling.max_tokens) == (25, 8192)
    assert settings.sampling.temperature == 0
    plan = make_plan(settings, "eval", equal_devices(8, 80))
    assert plan.refusal == ""
    assert plan.missing == ("the tasks, in eval.jsonl: see hone tasks import --help",)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"SWE_MAX_CONCURENT": "3"},
            "SWE_MAX_CONCURENT is none of swe-rl's: did you mean SWE_MAX_CONCURRENT?",
        ),
        ({"SWE_ROLLOUT_TIMEOUT": "soon"}, "SWE_ROLLOUT_TIMEOUT: rollout.time_limit_s = 'soon': it should be"),
        ({"SWE_CONTAINER_MEMORY": "much"}, "SWE_CONTAINER_MEMORY is 'much': it must be an amount of memory"),
        ({"SWE_STRICT_NO_TEST_PATCH": "0"}, "such edits are always removed from a patch"),
        ({"SWE_SKIP_EVAL": "1"}, "SWE_SKIP_EVAL has no effect: every patch is graded; unset it"),
        (
            {"SWE_ENV_SERVER_URL": "http://head:18090", "SWE_ENV_SERVER_PORT": "18091"},
            "SWE_ENV_SERVER_PORT and SWE_ENV_SERVER_URL set sandbox.pool_url to http://localhost:18091 and "
            "http://head:18090: unset one of them",
        ),
        ({"HF_CKPT": "a", "REF_LOAD": "b"}, "HF_CKPT and REF_LOAD set model.path to a and b"),
    ],
)
def test_unusable_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
):
    with pytest.raises(ConfigError) as error:
        with_variables(monkeypatch, "swe-8b", **variables)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_set_overrides_a_variable_and_the_source_is_recorded(monkeypatch: pytest.MonkeyPatch):
    settings = with_variables(
        monkeypatch, "swe-8b", "train", "train.steps=9", HF_CKPT="Qwen/Qwen3-4B", DEBUG_MODE="1"
    )
    assert settings.train.steps == 9
    assert settings.variables == {"model.path": "HF_CKPT", "rollout.group_size": "DEBUG_MODE"}
    lines = dump(settings).splitlines()
    assert 'path = "Qwen/Qwen3-4B"  # from $HF_CKPT' in lines
    assert "group_size = 2  # from $DEBUG_MODE" in lines
    assert "steps = 9" in lines
    plan = make_plan(settings, "train", equal_devices(8, 80, nodes=2))
    assert plan.variables == {
        "model.path": ("HF_CKPT", "Qwen/Qwen3-4B"),
        "rollout.group_size": ("DEBUG_MODE", 2),
    }


def test_resolved_recipe_is_read_without_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    settings = with_variables(monkeypatch, "swe-8b", HF_CKPT="models/m")
    (tmp_path / "config.toml").write_text(dump(settings))
    monkeypatch.setenv("HF_CKPT", "models/other")
    again = resolve(tmp_path / "config.toml", command="train")
    assert again.model == settings.model


@pytest.mark.parametrize(
    ("recipe", "command"), [("swe-8b", None), ("swe-8b", "sft"), ("quickstart", "train")]
)
def test_variables_are_read_only_where_the_script_would_run(
    monkeypatch: pytest.MonkeyPatch, recipe: str, command: Command | None
):
    expected = resolve(ROOT / "recipes" / f"{recipe}.toml")
    given = with_variables(monkeypatch, recipe, command, PROMPT_DATA="x", HF_CKPT="y", SWE_TYPO="z")
    assert given == expected


def test_system_of_a_recipe_must_be_known(tmp_path: Path):
    (tmp_path / "a.toml").write_text('seed = 1\nvariables = "swe"\n')
    with pytest.raises(
        ConfigError, match=r"a.toml, line 2: variables = 'swe': it must be one of qwen-swe, swe-rl"
    ):
        resolve(tmp_path / "a.toml")


def test_docs_list_every_variable():
    page = (ROOT / "docs" / "03-recipes.md").read_text()
    listed = set(re.findall(r"`([A-Z][A-Z_]*[A-Z])`", page.partition("## Variables of published scripts")[2]))
    assert listed == ALL
