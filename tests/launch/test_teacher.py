"""The teacher of on-policy distillation: what is refused before a run starts, and what its engine gives."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hone.config import ConfigError, RunSettings, resolve
from hone.launch.policy import load_policy
from hone.launch.reporter import Reporter
from hone.launch.teacher import find_teacher, open_teacher, require_same_vocabulary
from hone.launch.train import replay
from hone.policy.model import load_tokenizer
from hone.policy.tiny import make_tiny, make_tokenizer
from tests.policy.conftest import SETTINGS, TEXTS
from tests.train.trajectories import multi_turn_samples

OTHER = [text[::-1] for text in TEXTS]


def settings(tmp_path: Path, teacher: Path) -> RunSettings:
    return resolve(
        None,
        [
            f"run_dir={tmp_path / 'run'}",
            f"model.path={tmp_path / 'policy'}",
            "train.distill.enabled=true",
            f"train.distill.model.path={teacher}",
        ],
    )


def test_vocabularies_are_compared_token_by_token():
    """Two vocabularies of one size, which differ in a token or in two ids."""
    mine = make_tokenizer(TEXTS, SETTINGS)
    require_same_vocabulary(mine, make_tokenizer(TEXTS, SETTINGS))
    other = make_tokenizer(OTHER, SETTINGS)
    with pytest.raises(
        ConfigError, match=r"another vocabulary than the policy's: \d+ tokens differ, such as"
    ):
        require_same_vocabulary(mine, other)
    longer = make_tokenizer(TEXTS, SETTINGS)
    longer.add_tokens(["<extra>"])
    with pytest.raises(ConfigError, match=r"1 tokens differ, such as '<extra>' \(absent in the policy's, id"):
        require_same_vocabulary(mine, longer)


@pytest.mark.model
def test_teacher_with_another_vocabulary_is_refused_before_its_weights_are_read(tmp_path: Path):
    make_tiny(TEXTS, tmp_path / "policy", SETTINGS)
    make_tiny(OTHER, tmp_path / "teacher", SETTINGS)
    (tmp_path / "teacher" / "model.safetensors").write_bytes(b"not weights")
    wanted = settings(tmp_path, tmp_path / "teacher")
    with pytest.raises(ConfigError, match="the teacher's tokenizer has another vocabulary"):
        find_teacher(wanted, load_policy(wanted))
    assert (
        find_teacher(wanted.model_copy(update={"train": resolve(None, []).train}), load_policy(wanted))
        is None
    )


@pytest.mark.model
def test_teacher_that_knows_fewer_ids_is_refused(tmp_path: Path):
    make_tiny(TEXTS, tmp_path / "policy", SETTINGS)
    make_tiny(TEXTS, tmp_path / "teacher", SETTINGS)
    config = json.loads((tmp_path / "teacher" / "config.json").read_text())
    rows = config["vocab_size"]
    config["vocab_size"] = rows - 1
    (tmp_path / "teacher" / "config.json").write_text(json.dumps(config))
    wanted = settings(tmp_path, tmp_path / "teacher")
    with pytest.raises(ConfigError, match=f"can sample {rows} token ids and the teacher .* knows {rows - 1}"):
        find_teacher(wanted, load_policy(wanted))


@pytest.mark.model
def test_policy_is_its_own_best_teacher(tmp_path: Path):
    """With equal models the divergence is 0, up to rounding."""
    make_tiny(TEXTS, tmp_path / "policy", SETTINGS)
    wanted = settings(tmp_path, tmp_path / "policy")
    policy = load_policy(wanted)
    assert len(load_tokenizer(tmp_path / "policy")) > 64  # the ids of the samples
    from tests.train.examples import with_logprobs

    samples = with_logprobs(multi_turn_samples(4), policy.model)

    async def distil() -> tuple[float, float]:
        async with open_teacher(wanted, find_teacher(wanted, policy)) as distill:
            assert distill is not None
            scored, metrics = await distill(samples)
        return max(float(np.abs(sample.advantage).max()) for sample in scored), metrics["distill/kl"]

    largest, kl = asyncio.run(distil())
    assert largest < 1e-4
    assert abs(kl) < 1e-5


def test_replay_of_a_run_with_a_teacher_is_refused(tmp_path: Path):
    wanted = settings(tmp_path, tmp_path / "teacher")
    with pytest.raises(
        ConfigError, match=r"a replay opens no engine, and train\.distill needs its teacher's"
    ):
        replay(tmp_path / "old", wanted, Reporter(Console(file=io.StringIO())))
