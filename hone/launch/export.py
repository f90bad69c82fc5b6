"""Conversations for supervised training, exported from a run, an evaluation or recorded demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

from hone.config import resolve
from hone.launch.rundir import CONFIG
from hone.rollout.conversations import load_examples, write_conversations
from hone.rollout.errors import StoreError


def export(source: Path, out: Path) -> int:
    """Write the conversations of `source` into the Parquet file `out`; return their number.

    Raises StoreError when `source` cannot be read or holds none.
    """
    examples = load_examples(source)
    if not examples:
        raise StoreError(f"{source} has no resolved rollout and no demonstration: there is nothing to export")
    write_conversations(examples, out, thinking=_thinking(source))
    return len(examples)


def _thinking(run: Path) -> bool | None:
    """Return `model.thinking` of a run or an evaluation; None: it has no model, or is a file."""
    summary = run / "summary.json"
    if (run / CONFIG).is_file():
        model = resolve(run / CONFIG).model
        return None if model is None else model.thinking
    model = json.loads(summary.read_bytes())["args"]["model"] if summary.is_file() else None
    return None if model is None else model["thinking"]
