"""The numbers behind --dry-run."""

import json
from importlib import resources
from pathlib import Path

import pytest

from hone.agents import ScaffoldError
from hone.config import ConfigError, make_plan, resolve
from hone.config.shapes import folder_shape, tiny_shape
from hone.policy.settings import TinyModelSettings
from hone.tasks.errors import TaskError

MODEL = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "tie_word_embeddings": True,
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    path = tmp_path / "run.toml"
    path.write_text(
        f'groups_per_step = 4\n[model]\npath = "{tmp_path / "model"}"\n[train]\nsteps = 5\n'
        "[rollout]\ngroup_size = 6\nconcurrent_episodes = 3\n[engine]\ncontext_tokens = 100\n"
    )
    return path


def test_train_plan_counts_steps_rollouts_tokens_sandboxes(recipe: Path):
    plan = make_plan(resolve(recipe), "train")
    assert (plan.steps, plan.rollouts, plan.tokens, plan.sandboxes) == (5, 5 * 4 * 6, 5 * 4 * 6 * 100, 3)


def test_a_scripted_agent_needs_no_model(recipe: Path):
    plan = make_plan(resolve(recipe, ["agent.kind=oracle"]), "eval")
    assert (plan.parameters, plan.tokens) == (None, 0)


def test_plan_rejects_bad_prompts_and_programs(recipe: Path, tmp_path: Path):
    yaml = tmp_path / "agent.yaml"
    yaml.write_text("agent: {sytem_template: x}")
    with pytest.raises(ScaffoldError, match=r"agent.yaml: .*did you mean 'system_template'"):
        make_plan(resolve(recipe, [f"agent.prompts={yaml}"]), "train")
    with pytest.raises(ScaffoldError, match="did you mean 'qwen-code'"):
        make_plan(resolve(recipe, ["agent.kind=blackbox", "agent.program=qwen-cod"]), "train")


def test_plan_lists_unused_prompt_keys(recipe: Path, tmp_path: Path):
    yaml = tmp_path / "agent.yaml"
    shipped = resources.files("hone.agents").joinpath("prompts", "default.yaml").read_text()
    yaml.write_text(shipped + "\nmodel:\n  cost_tracking: ignore_errors\n")
    assert make_plan(resolve(recipe, [f"agent.prompts={yaml}"]), "train").unused == ("model.cost_tracking",)
    assert make_plan(resolve(recipe), "train").unused == ()


def test_a_missing_or_broken_model_is_refused(recipe: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no model folder .*gone"):
        make_plan(resolve(recipe, [f"model.path={tmp_path / 'gone'}"]), "train")
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not describe a model"):
        make_plan(resolve(recipe), "train")


@pytest.mark.model
@pytest.mark.parametrize("tied", [True, False])
def test_planned_parameter_count_equals_the_model(tmp_path: Path, tied: bool):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**{**MODEL, "tie_word_embeddings": tied})
    config.save_pretrained(tmp_path)
    real = sum(p.numel() for p in Qwen3ForCausalLM(config).parameters())
    assert folder_shape(tmp_path).parameters == real
    if tied:
        tiny = TinyModelSettings(
            vocab_size=1000, hidden_size=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate_size=128
        )
        assert tiny_shape(tiny).parameters == real


def test_plan_rejects_tasks_that_cannot_be_graded(recipe: Path, tmp_path: Path):
    checks = {"fail_to_pass": ["test_a (m.T)"], "pass_to_pass": [], "test_files": {}, "gold_patch": ""}
    task = {
        "id": "django__django-1",
        "problem": "It fails.",
        "environment": {"image": "docker://me/x", "repo": "django/django"},
        "checks": {**checks, "parser": "parse_log_django"},
        "source": "swe-bench",
    }
    source = tmp_path / "tasks.jsonl"
    source.write_text(json.dumps(task))
    settings = resolve(recipe, [f"tasks.source={source}"])
    with pytest.raises(TaskError, match=r"django__django-1: its tests do not run with pytest.*--report"):
        make_plan(settings, "train")
    assert make_plan(settings, "eval").tasks["train"] == 1  # an evaluation has other tasks
    script = ": '>>>>> Start Test Output'\n./tests/runtests.py m\n: '>>>>> End Test Output'\n"
    task["checks"] = {**task["checks"], "script": script}
    source.write_text(json.dumps(task))
    assert make_plan(settings, "train").tasks["train"] == 1
