"""Rows of an SFT file (`messages`, `tools`, `enable_thinking`) become the prompts of the model's template."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.agents.debugger.tools import tool_specs
from hone.config import ConfigError
from hone.launch.policy import Policy
from hone.launch.sft import encoder
from hone.policy.model import make_renderer
from hone.policy.settings import ModelSettings
from hone.rollout.conversations import read_conversations
from hone.train.sft import demonstration_samples
from hone.types import Sample
from tests.policy.families import template_tokenizer

TOOLS = [{"type": "function", "function": tool} for tool in tool_specs(pdb=True)[:2]]
CALL = {"function": {"name": "view", "arguments": '{"path": "a.py"}'}, "id": "c1", "type": "function"}
MESSAGES = [
    {"role": "system", "content": "You fix bugs.", "name": None, "tool_call_id": None, "tool_calls": None},
    {"role": "user", "content": "add is wrong", "name": None, "tool_call_id": None, "tool_calls": None},
    {"role": "assistant", "content": "", "name": None, "tool_call_id": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "a - b", "name": "view", "tool_call_id": "c1", "tool_calls": None},
    {"role": "assistant", "content": "Done.", "name": None, "tool_call_id": None, "tool_calls": None},
]


def policy(thinking: bool, renderer: str = "qwen3") -> Policy:
    tokenizer = template_tokenizer("qwen3")
    settings = ModelSettings(path=Path("m"), renderer=renderer, thinking=thinking)
    return Policy(
        settings=settings, tokenizer=tokenizer, renderer=make_renderer(tokenizer, renderer, thinking=thinking)
    )


def samples(tmp_path: Path, kinds: list[bool], trained: Policy) -> list[Sample]:
    rows = [{"messages": MESSAGES, "tools": TOOLS, "enable_thinking": kind} for kind in kinds]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sft.parquet")
    return demonstration_samples(read_conversations(tmp_path / "sft.parquet"), encoder(trained))


@pytest.mark.parametrize("default", [True, False])
def test_each_row_has_its_tools_and_its_thinking(tmp_path: Path, default: bool):
    trained = policy(default)
    plain = [{key: value for key, value in each.items() if value is not None} for each in MESSAGES]
    for kind, sample in zip((True, False), samples(tmp_path, [True, False], trained), strict=True):
        text = str(trained.tokenizer.decode(sample.tokens.tolist()))
        prompt = trained.tokenizer.apply_chat_template(
            plain[:2], tools=TOOLS, add_generation_prompt=True, enable_thinking=kind, tokenize=False
        )
        assert text.startswith(str(prompt))
        assert '"name": "pdb"' in str(prompt)
        given = str(trained.tokenizer.decode(sample.tokens[sample.weight == 0].tolist()))
        assert given.count("<think>\n\n</think>") == (0 if kind else 2)  # in both prompts, or in none
        taught = str(trained.tokenizer.decode(sample.tokens[sample.weight > 0].tolist()))
        assert taught.count("<|im_end|>") == 2
        assert '"name": "view"' in taught
        assert taught.endswith("Done.<|im_end|>")


def test_thinking_that_the_renderer_cannot_write_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="enable_thinking = false cannot be rendered"):
        samples(tmp_path, [True, False], policy(True, "default"))
    assert samples(tmp_path, [True, True], policy(True, "default"))
