from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.debugger.tools import tool_specs
from hone.policy.reply import tool_call
from hone.rollout.conversations import load_examples, read_conversations, write_conversations
from hone.rollout.demonstrations import Demonstration
from hone.rollout.errors import StoreError
from tests.policy.families import template_tokenizer

CALL = tool_call("c1", "view", {"path": "a.py"})
MESSAGES = (
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "add is wrong"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "def add(a, b):", "tool_call_id": "c1"},
    {"role": "assistant", "content": "Done."},
)
DEBUGGING = Demonstration(
    task_id="t", rollout_id="t-0", messages=MESSAGES, tools=tuple(tool_specs(pdb=True)), thinking=False
)


def plain(value: Any) -> Any:
    """As verl's multi-turn SFT data set converts what pandas reads."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "tolist") or isinstance(value, list):
        return [plain(item) for item in (value.tolist() if hasattr(value, "tolist") else value)]
    return value


def test_columns_and_types_are_those_of_the_published_file(tmp_path: Path):
    write_conversations([DEBUGGING], tmp_path / "sft.parquet")
    schema = pq.read_schema(tmp_path / "sft.parquet")
    assert set(schema.names) == {"messages", "tools", "enable_thinking"}
    function = pa.struct([("arguments", pa.string()), ("name", pa.string())])
    call = pa.struct([("function", function), ("id", pa.string()), ("type", pa.string())])
    texts = [(name, pa.string()) for name in ("content", "name", "role", "tool_call_id")]
    assert schema.field("messages").type.value_type == pa.struct([*texts, ("tool_calls", pa.list_(call))])
    assert schema.field("enable_thinking").type == pa.bool_()
    tool = schema.field("tools").type.value_type
    assert {tool.field(i).name for i in range(tool.num_fields)} == {"function", "type"}


def test_verl_renders_each_message_of_the_file(tmp_path: Path):
    write_conversations([DEBUGGING, DEBUGGING], tmp_path / "sft.parquet")
    row = pd.read_parquet(tmp_path / "sft.parquet", dtype_backend="pyarrow").iloc[1].to_dict()
    tokenizer = template_tokenizer("qwen3")
    messages, tools = plain(row["messages"]), plain(row["tools"])
    texts = [
        tokenizer.apply_chat_template(
            [message],
            tools=tools if index == 0 else None,
            enable_thinking=bool(row["enable_thinking"]),
            tokenize=False,
        )
        for index, message in enumerate(messages)
    ]
    assert '"name": "pdb"' in texts[0]
    assert '"name": "view"' in texts[2]
    assert "def add(a, b):" in texts[3]
    assert "Done." in texts[4]


def test_no_cell_is_null_without_tools_and_with_unknown_thinking(tmp_path: Path):
    """verl 0.9.1 reads a null cell as pandas' NA, which it cannot use."""
    bash = Demonstration(task_id="t", rollout_id="t-0", messages=MESSAGES[:2] + MESSAGES[4:])
    write_conversations([bash, bash], tmp_path / "sft.parquet")
    table = pd.read_parquet(tmp_path / "sft.parquet", dtype_backend="pyarrow")
    assert plain(table.iloc[0]["tools"]) == []
    assert bool(table.iloc[0]["enable_thinking"]) is False


def test_conversations_are_read_as_they_were_written(tmp_path: Path):
    reasoned = Demonstration(
        task_id="u",
        rollout_id="u-0",
        messages=(*MESSAGES[:2], {"role": "assistant", "content": "x", "reasoning_content": "because"}),
    )
    write_conversations([DEBUGGING, reasoned], tmp_path / "sft.parquet")
    first, second = load_examples(tmp_path / "sft.parquet")
    assert isinstance(first, Demonstration)
    assert isinstance(second, Demonstration)
    assert (first.messages, first.tools, first.thinking) == (MESSAGES, DEBUGGING.tools, False)
    assert (second.messages, second.tools, second.thinking) == (reasoned.messages, (), True)
    write_conversations([DEBUGGING], tmp_path / "sft.parquet", thinking=True)
    assert [each.thinking for each in read_conversations(tmp_path / "sft.parquet")] == [True]


values = st.recursive(
    st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
names = st.text(min_size=1, max_size=3)


@given(st.lists(st.lists(names, min_size=0, max_size=3), min_size=1, max_size=3))
def test_tools_of_any_parameters_return(tmp_path_factory: pytest.TempPathFactory, sets: list[list[str]]):
    tools = tuple(
        {
            "name": f"t{number}",
            "description": "d",
            "parameters": {"type": "object", "properties": {name: {"type": "string"} for name in parameters}},
        }
        for number, parameters in enumerate(sets)
    )
    path = tmp_path_factory.mktemp("sft") / "a.parquet"
    example = Demonstration(task_id="t", rollout_id="t", messages=MESSAGES, tools=tools)
    write_conversations([example], path)
    (read,) = read_conversations(path)
    for tool, before in zip(read.tools, tools, strict=True):
        assert tool["parameters"].get("properties", {}) == before["parameters"]["properties"]


def test_tools_of_several_types_are_refused(tmp_path: Path):
    def spec(kind: Any) -> dict[str, Any]:
        return {"name": "t", "description": "", "parameters": {"type": kind}}

    mixed = Demonstration(
        task_id="t", rollout_id="t", messages=MESSAGES, tools=(spec("object"), spec(["object"]))
    )
    with pytest.raises(StoreError, match="A Parquet column has one type"):
        write_conversations([mixed], tmp_path / "sft.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "row", [{"messages": [{"content": "no role"}]}, {"text": "no messages"}, {"messages": None}]
)
def test_row_that_is_no_conversation_is_named(tmp_path: Path, row: dict[str, Any]):
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "sft.parquet")
    with pytest.raises(StoreError, match="row 1, is not a conversation"):
        read_conversations(tmp_path / "sft.parquet")


def test_recorded_demonstrations_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from hone.cli import main

    recorded = {"task_id": "t", "rollout_id": "t-0", "messages": MESSAGES}
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps(recorded) + "\n")
    out = tmp_path / "sft.parquet"
    monkeypatch.setattr(
        "sys.argv", ["hone", "export", str(tmp_path / "demonstrations.jsonl"), "-o", str(out)]
    )
    assert main() == 0
    assert "1 conversations" in capsys.readouterr().out
    assert read_conversations(out)[0].messages == MESSAGES
