"""Supervised training on a Parquet file of conversations."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hone.config import ConfigError, resolve
from hone.launch.reporter import Reporter
from hone.launch.sft import SftReport, sft
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.conversations import write_conversations
from hone.rollout.demonstrations import Demonstration
from tests.policy.families import template_tokenizer

pytestmark = [pytest.mark.model, pytest.mark.full]

MESSAGES = (
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "add is wrong"},
    {"role": "assistant", "content": "```bash\nsed -i s/-/+/ a.py\n```"},
)
SAID = Demonstration(task_id="t", rollout_id="t-0", messages=MESSAGES)


def train(tmp_path: Path, *sets: str) -> SftReport:
    paths = {"run_dir": "run", "model.path": "model", "demonstrations.path": "sft.parquet"}
    given = [f"{name}={tmp_path / path}" for name, path in paths.items()]
    small = ["sft.epochs=1", "sft.batch_size=2", "engine.context_tokens=256"]
    return sft(resolve(None, [*given, *small, *sets]), Reporter(Console(file=io.StringIO())))


def test_conversations_of_a_parquet_file_are_trained_on(tmp_path: Path) -> None:
    make_tiny([str(message["content"]) for message in MESSAGES] * 2, tmp_path / "model")
    write_conversations([SAID] * 4, tmp_path / "sft.parquet")
    report = train(tmp_path, "model.thinking=false")
    assert report.demonstrations == 4
    assert report.loss is not None
    assert (report.checkpoint / "model.safetensors").is_file()


@pytest.mark.parametrize(("kinds", "said"), [([True, True], "2 of 2"), ([True, False], "1 of 2")])
def test_conversations_with_another_thinking_are_refused(
    tmp_path: Path, kinds: list[bool], said: str
) -> None:
    tokenizer = template_tokenizer("qwen3")
    make_tiny([], tmp_path / "model", TinyModelSettings(vocab_size=len(tokenizer) + 400))
    tokenizer.save_pretrained(tmp_path / "model")
    write_conversations([replace(SAID, thinking=kind) for kind in kinds], tmp_path / "sft.parquet")
    with pytest.raises(
        ConfigError, match=f"{said} conversations .* enable_thinking = true, but model.thinking is"
    ):
        train(tmp_path, "model.thinking=false", "model.renderer=qwen3")
