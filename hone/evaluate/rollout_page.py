"""Render one rollout as a page: messages, turns, patch, verdict, and every call with its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.evaluate.html import render
from hone.rollout.rewards import solved
from hone.types import Message, TestStatus, TokenTree, Trajectory, Turn

ROLLOUT_PAGE = "rollout.html"
FILES = ("traj.json", "patch.diff", "meta.json", "verdict.json", "tokens.parquet")
ORDER = (
    TestStatus.FAILED,
    TestStatus.ERROR,
    TestStatus.MISSING,
    TestStatus.SKIPPED,
    TestStatus.XFAILED,
    TestStatus.PASSED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """One message as the page shows it."""

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[str, ...] = ()  # tool calls: name and arguments
    turn: Turn | None = None  # the turn of a reply
    tokens: int | None = None  # sampled for the reply; None: no engine, or an engine without token ids


def rollout_page(trajectory: Trajectory) -> str:
    """Return the page of a rollout; like verdict.json, it names hidden tests."""
    messages = conversation(trajectory)
    tests = {} if trajectory.verdict is None else trajectory.verdict.tests
    return render(
        "rollout.html.jinja",
        trajectory=trajectory,
        resolved=solved(trajectory.outcome, trajectory.verdict),
        messages=messages,
        turns_in_messages=any(message.turn is not None for message in messages),
        tokens={turn.index: _tokens(trajectory.tree, turn) for turn in trajectory.turns},
        calls=trajectory.calls,
        forks=trajectory.forks,
        signals=trajectory.signals,
        branches=len(trajectory.tree.leaves()),
        sampling=trajectory.sampler.sampling,
        patch=[(line_kind(line), line) for line in trajectory.patch.split("\n")],
        tests=sorted(tests.items(), key=lambda test: (ORDER.index(test[1]), test[0])),
        files=FILES,
    )


def conversation(trajectory: Trajectory) -> list[ShownMessage]:
    """Return the messages; replies are joined with their turns where there is one reply per turn."""
    replies = [message for message in trajectory.messages if message.get("role") == "assistant"]
    turns = iter(trajectory.turns if len(replies) == len(trajectory.turns) else ())
    shown: list[ShownMessage] = []
    for message in trajectory.messages:
        turn = next(turns, None) if message.get("role") == "assistant" else None
        shown.append(
            ShownMessage(
                role=str(message.get("role", "?")),
                text=_text(message.get("content")),
                reasoning=_text(message.get("reasoning_content")),
                calls=tuple(_call(call) for call in _calls(message)),
                turn=turn,
                tokens=None if turn is None else _tokens(trajectory.tree, turn),
            )
        )
    return shown


def line_kind(line: str) -> str:
    """Return the kind of a diff line: "file", "hunk", "added", "removed" or "context"."""
    if line.startswith(("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "rename ")):
        return "file"
    kinds = {"@": "hunk", "+": "added", "-": "removed"}
    return kinds.get(line[:1], "context")


def _tokens(tree: TokenTree, turn: Turn) -> int | None:
    return None if turn.node is None else len(tree.nodes[turn.node].tokens)


def _text(content: Any) -> str:
    """Return a message's content as text; blocks without text are shown as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_block(block) for block in content)
    return json.dumps(content)


def _block(block: Any) -> str:
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        return block["text"]
    return json.dumps(block)


def _calls(message: Message) -> Sequence[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, (list, tuple)) else ()


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return json.dumps(call)
    return f"{function.get('name')}({function.get('arguments')})"
