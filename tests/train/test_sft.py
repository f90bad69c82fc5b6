from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.policy.chat import encode_conversation
from hone.policy.model import load_model, load_tokenizer, make_renderer
from hone.policy.reply import ToolSpec
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.train.errors import TrainError
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import CheckpointSettings, OptimizerSettings, SftSettings
from hone.train.sft import demonstration_samples, sft
from hone.types import Message, Sample, TokenTree
from tests.train.examples import sft_learner, tiny_model, tokenizer
from tests.train.trajectories import multi_turn_samples, trajectory

pytestmark = pytest.mark.model

SETTINGS = SftSettings(
    epochs=3,
    batch_size=4,
    optimizer=OptimizerSettings(lr=1e-2, schedule="cosine", warmup_steps=1),
    checkpoint=CheckpointSettings(every=2, keep=1),
)


def run_sft(
    run_dir: Path, samples: Sequence[Sample], stop_after: int | None = None
) -> tuple[Path, torch.nn.Module]:
    class Stop(Exception):
        pass

    def watch(step: int, steps: int, metrics: object) -> None:
        assert steps == 9
        if step == stop_after:
            raise Stop

    model = tiny_model()
    with MetricsWriter(run_dir, kind="sft", tensorboard=False) as metrics:
        try:
            path = sft(
                sft_learner(model, SETTINGS),
                samples,
                SETTINGS,
                run_dir=run_dir,
                tokenizer=tokenizer(),
                metrics=metrics,
                on_step=watch,
            )
        except Stop:
            path = run_dir
    return path, model


def test_sft_lowers_the_loss_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    samples = multi_turn_samples(10)  # 3 optimiser steps per epoch, the last of two trajectories
    path, whole = run_sft(tmp_path / "whole", samples)
    run_sft(tmp_path / "broken", samples, stop_after=4)
    again, resumed = run_sft(tmp_path / "broken", samples)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert path.name == again.name == "step-000008"
    loaded = AutoModelForCausalLM.from_pretrained(path)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), whole.parameters(), strict=True))
    records = read_metrics(tmp_path / "broken", "sft")
    assert [r["step"] for r in records] == list(range(9))
    assert records[-1]["loss"] < records[0]["loss"] - 0.3
    assert records[0]["lr"] < records[1]["lr"] > records[-1]["lr"]
    assert sum(r["trained_tokens"] for r in records) == 3 * sum(s.weight.sum() for s in samples)


def test_finished_sft_run_trains_no_further(tmp_path: Path) -> None:
    samples = multi_turn_samples(10)
    path, _ = run_sft(tmp_path, samples)
    assert run_sft(tmp_path, samples)[0] == path
    assert len(read_metrics(tmp_path, "sft")) == 9


def test_sft_without_samples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="nothing to train on"):
        run_sft(tmp_path, [])


def test_demonstrations_train_assistant_text_and_stop_token(tmp_path: Path) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "fix the bug"},
        {"role": "user", "content": "x is wrong"},
        {"role": "assistant", "content": "cat x"},
        {"role": "user", "content": "x = 1"},
        {"role": "assistant", "content": "echo done"},
    ]
    make_tiny(
        [str(m["content"]) for m in messages] * 2, tmp_path / "model", TinyModelSettings(vocab_size=320)
    )
    words = load_tokenizer(tmp_path / "model")
    renderer = make_renderer(words)

    def encode(said: Sequence[Message], tools: Sequence[ToolSpec], thinking: bool | None) -> TokenTree:
        return encode_conversation(renderer, words, said, tools=tools)

    scripted = replace(trajectory("demo", tree=TokenTree()), messages=tuple(messages))
    drawn = trajectory("drawn")
    demo, kept = demonstration_samples([scripted, drawn], encode)
    assert words.decode(demo.tokens[demo.weight > 0].tolist()) == "cat x<|im_end|>echo done<|im_end|>"
    first = int(np.flatnonzero(demo.weight)[0])
    assert demo.tokens[:first].tolist() == renderer.render_ids(messages[:2], add_generation_prompt=True)
    assert kept.tokens.tolist() == np.concatenate([n.tokens for n in drawn.tree.nodes]).tolist()
    foreign = replace(drawn, messages=tuple(messages))  # its tokens are another tokenizer's
    (again,) = demonstration_samples([foreign], encode, keeps_tokens=lambda _: False)
    assert again.tokens.tolist() == demo.tokens.tolist()
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        path = sft(
            sft_learner(load_model(tmp_path / "model"), SETTINGS),
            [demo],
            SETTINGS,
            run_dir=tmp_path,
            tokenizer=words,
            metrics=metrics,
        )
    assert load_tokenizer(path).decode(demo.tokens.tolist()) == words.decode(demo.tokens.tolist())
