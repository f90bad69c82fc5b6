"""On-policy distillation: a recipe whose settings contradict each other is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError, dump, resolve
from hone.config.placement import resolve_placement
from hone.utils.devices import equal_devices

TEACHER = ["train.distill.enabled=true", "train.distill.model.path=teacher"]


@pytest.mark.parametrize(
    "sets",
    [
        [],
        TEACHER,
        [*TEACHER, "train.distill.outcome_reward=true", "rollout.replace_constant_groups=2"],
        [*TEACHER, 'train.distill.engine={kind="vllm", urls=["http://b:1"], context_tokens=4096}'],
    ],
)
def test_recipes_with_a_teacher_round_trip(sets: list[str], tmp_path: Path) -> None:
    settings = resolve(None, sets)
    path = tmp_path / "config.toml"
    path.write_text(dump(settings))
    assert resolve(path) == settings


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (TEACHER[1:], "train.distill.model has no effect while train.distill.enabled is false"),
        (["train.distill.coefficient=2"], "train.distill.coefficient has no effect"),
        (TEACHER[:1], "train.distill.model.path is missing"),
        (
            [*TEACHER, 'train.distill.engine={kind="openai", urls=["http://x/v1"], model_name="m"}'],
            "train.distill.engine",
        ),
        ([*TEACHER, "train.distill.engine.context_tokens=2048"], "up to 2048 tokens: set it above that"),
        ([*TEACHER, "train.distill.coefficient=0"], "train.distill.coefficient"),
        ([*TEACHER, "rollout.replace_constant_groups=2"], "drops groups of equal rewards"),
        (
            [
                *TEACHER,
                'engine={kind="vllm", urls=["http://a:1", "http://b:1"]}',
                'train.distill.engine={kind="vllm", urls=["http://b:1"], context_tokens=4096}',
            ],
            "http://b:1 serves the policy, whose weights change",
        ),
        (["demonstrations.per_task=2"], "demonstrations.per_task has no effect on demonstrations that are"),
        (["demonstrations.only_resolved=false"], "demonstrations.only_resolved has no effect"),
    ],
)
def test_contradiction_is_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(None, sets)
    assert said in str(error.value)


def test_sources_of_demonstrations_are_one_or_several() -> None:
    assert resolve(None, ["demonstrations.path=a.parquet"]).demonstrations.path == (Path("a.parquet"),)
    several = resolve(None, ['demonstrations.path=["a", "b"]'])
    assert several.demonstrations.path == (Path("a"), Path("b"))


def test_teacher_gets_the_gpus_after_the_engine() -> None:
    engine = 'engine={kind="vllm", tensor_parallel=2}'
    teacher = 'train.distill.engine={kind="vllm", context_tokens=4096, servers=2}'
    settings = resolve(None, [*TEACHER, engine, teacher, "model.path=m"])
    placed = resolve_placement(settings, equal_devices(8, 80), "train")
    assert (placed.trainer, placed.engine, placed.teacher) == ((0,), ((1, 2),), ((3,), (4,)))
    with pytest.raises(ConfigError, match=r"placement\.teacher: 2 servers .* train\.distill\.engine\.urls"):
        resolve_placement(settings, equal_devices(4, 80), "train")
    assert resolve_placement(settings, equal_devices(8, 80), "eval").teacher == ()


def test_teacher_gets_the_gpus_after_the_judge() -> None:
    judge = ["judge.enabled=true", "judge.engine.kind=vllm", "train.algorithm.reward=final"]
    teacher = "train.distill.engine.kind=vllm"
    settings = resolve(None, [*TEACHER, *judge, "engine.kind=vllm", teacher, "model.path=m"])
    placed = resolve_placement(settings, equal_devices(8, 80), "train")
    assert (placed.engine, placed.judge, placed.teacher) == (((1,),), ((2,),), ((3,),))
