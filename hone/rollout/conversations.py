"""Conversations as rows for supervised training elsewhere, in the columns of verl's multi-turn SFT data set.

messages         list of {content, name, role, tool_call_id, tool_calls}, and reasoning_content where there is
tools            list of {type, function: {name, description, parameters}}; empty without tools
enable_thinking  whether the prompts let the model reason

No cell is null, which verl 0.9.1 does not take. A column has one type, so within a cell a key that one
message or tool lacks is null. Names and types are those of the debugger's published SFT data
(p81sunshine/Issta-2026 at 8a491e3, sft/data/test.parquet); `verl.utils.dataset.multiturn_sft_dataset` reads
both.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from hone.rollout import demonstrations
from hone.rollout.demonstrations import Demonstration
from hone.rollout.errors import StoreError
from hone.rollout.rewards import solved
from hone.rollout.store import Store
from hone.tasks.errors import TaskError
from hone.tasks.files import PARQUET, read_rows
from hone.tasks.rows import Row
from hone.types import Trajectory
from hone.utils.files import replace_file

_TEXTS = [(name, pa.string()) for name in ("content", "name", "role", "tool_call_id")]
_CALL = pa.struct(
    [
        ("function", pa.struct([("arguments", pa.string()), ("name", pa.string())])),
        ("id", pa.string()),
        ("type", pa.string()),
    ]
)
_MESSAGE = [*_TEXTS, ("tool_calls", pa.list_(_CALL))]
_REASONING = ("reasoning_content", pa.string())


Example = Demonstration | Trajectory


def load_examples(path: Path) -> Sequence[Example]:
    """Return the conversations of a file, or the resolved rollouts of a run's or an evaluation's directory.

    Raises StoreError when they cannot be read.
    """
    return [e for e in load_all(path) if not isinstance(e, Trajectory) or solved(e.outcome, e.verdict)]


def load_all(path: Path) -> Sequence[Example]:
    """Return the conversations of a file, or all rollouts of a run's or an evaluation's directory.

    Raises StoreError when they cannot be read.
    """
    if path.is_dir():
        if not (path / "rollouts").is_dir():
            raise StoreError(
                f"{path} has no folder rollouts: name the directory of a run, of an evaluation (as `hone "
                "eval` prints it) or of one temperature of a sweep"
            )
        store = Store(path / "rollouts")
        return [store.load(name) for name in store.names()]
    return read_conversations(path) if path.suffix in PARQUET else demonstrations.load(path)


def write_conversations(
    examples: Sequence[Demonstration | Trajectory], path: Path, *, thinking: bool | None = None
) -> None:
    """Write a row per example into a Parquet file.

    Args:
        thinking: `enable_thinking` of all rows; None: that of each demonstration, or, where it is not
            known, whether a reply has reasoning.

    Raises StoreError where the messages or the schemas of the tools do not fit one Parquet column.
    """
    reasoned = any(_reasons(example) for example in examples)
    message = pa.struct([*_MESSAGE, _REASONING] if reasoned else _MESSAGE)
    tools = [[{"type": "function", "function": dict(tool)} for tool in example.tools] for example in examples]
    try:
        columns = {
            "messages": pa.array([list(example.messages) for example in examples], pa.list_(message)),
            "tools": pa.array(_with_equal_keys(tools)),
            "enable_thinking": pa.array(
                [_thinking(example) if thinking is None else thinking for example in examples], pa.bool_()
            ),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as partial:
            pq.write_table(pa.table(columns), partial)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise StoreError(
            f"cannot write {path}: {error}. A Parquet column has one type: export rollouts of one agent"
        ) from None


def read_conversations(path: Path) -> list[Demonstration]:
    """Return the conversations of a Parquet file. Raises StoreError, which names the row that is damaged."""
    found: list[Demonstration] = []
    try:
        for number, row in enumerate(read_rows(path), start=1):
            found.append(_demonstration(row, number, path))
    except TaskError as error:
        raise StoreError(str(error)) from None
    return found


def _thinking(example: Demonstration | Trajectory) -> bool:
    if isinstance(example, Demonstration) and example.thinking is not None:
        return example.thinking
    return _reasons(example)


def _reasons(example: Demonstration | Trajectory) -> bool:
    return any(message.get("reasoning_content") for message in example.messages)


def _with_equal_keys(values: Sequence[Any]) -> list[Any]:
    """Return the values, in which objects at the same place have the same keys; new ones are None.

    So are objects that have no key anywhere, which Parquet cannot hold.
    """
    objects: list[Row] = [value for value in values if isinstance(value, dict)]
    if objects:
        names = list(dict.fromkeys(name for value in objects for name in value))
        columns = [_with_equal_keys([value.get(name) for value in objects]) for name in names]
        rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
        filled = iter(rows if names else [None] * len(objects))
        return [next(filled) if isinstance(value, dict) else value for value in values]
    lists: list[list[Any]] = [value for value in values if isinstance(value, list)]
    if lists:
        items = iter(_with_equal_keys([item for value in lists for item in value]))
        lengths = [len(cast(list[Any], value)) if isinstance(value, list) else None for value in values]
        return [
            value if length is None else list(islice(items, length))
            for value, length in zip(values, lengths, strict=True)
        ]
    return list(values)


def _demonstration(row: Row | TaskError, number: int, path: Path) -> Demonstration:
    if isinstance(row, TaskError):
        raise row
    kept: Row = _without_nulls(row)
    try:
        return Demonstration(
            task_id=f"{path.name}:{number}",
            rollout_id=f"{path.name}:{number}",
            messages=tuple({"role": each["role"], "content": "", **each} for each in kept["messages"]),
            tools=tuple(tool["function"] for tool in kept.get("tools", ())),
            thinking=kept.get("enable_thinking"),
        )
    except (TypeError, KeyError) as error:
        raise StoreError(f"{path}, row {number}, is not a conversation: {error!r}") from None


def _without_nulls(value: Any) -> Any:
    """Return the value without the keys that are null because another row has them."""
    if isinstance(value, dict):
        members = cast(Row, value)
        return {name: _without_nulls(item) for name, item in members.items() if item is not None}
    return [_without_nulls(item) for item in cast(list[Any], value)] if isinstance(value, list) else value
