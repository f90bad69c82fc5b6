"""From messages to prompt tokens, on a token tree that only grows.

A transcript renders what an agent says next, lays engine replies into the tree, and forks the tree where an
agent rewrote history. The rule that must not break: a prompt is exactly the tokens of a path of the tree, and
tokens that an engine sampled are never encoded again.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hone.policy.errors import PolicyError
from hone.policy.reply import ToolCall, ToolSpec
from hone.types import Float32, Int32, Message, Node, TokenTree

if TYPE_CHECKING:
    from renderers import ParsedResponse, Renderer
    from transformers import PreTrainedTokenizerBase


class Fork(StrEnum):
    """Why a prompt does not continue the tip of its conversation."""

    REWRITTEN = "rewritten"  # the agent changed, dropped or replaced earlier messages, or asked again
    TEMPLATE = "template"  # the messages only grew, but the chat template renders the past differently


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt, and where it lies in the tree: `parent`'s path, then `rendered`."""

    tokens: list[int]
    parent: int | None
    rendered: Int32  # [T] what comes after the parent's path; may be empty
    fork: Fork | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A reply in the tree: the messages up to and including it, as keys, and its tokens."""

    keys: tuple[str, ...]
    prompt: list[int]
    reply: list[int]


class Transcript:
    """The token tree of one conversation, and how messages map onto it.

    Invariants: `tree` only grows; each reply is one sampled node with the engine's ids and log-probabilities;
    its parent's path is exactly the prompt the engine was given.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.tree = TokenTree()
        self.forks: Counter[Fork] = Counter()
        self._renderer = renderer
        self._said: list[_Said] = []

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None) -> Prompt:
        """The prompt for the reply that comes after `messages`; changes nothing.

        The longest known beginning of the conversation keeps its tokens; what follows it is rendered. Raises
        ValueError when there is nothing to reply to.
        """
        if not messages or messages[-1]["role"] == "assistant":
            raise ValueError("a reply needs at least one message, and the last must not be the assistant's")
        keys = tuple(_key(message) for message in messages)
        known = self._longest_said(keys)
        specs = _specs(tools)
        tokens = self._continued(messages, keys, known, specs)
        grown = known is not None and not self._continues(known)
        if tokens is None:
            tokens = self._renderer.render_ids(_plain(messages), tools=specs, add_generation_prompt=True)
        parent, start = self._deepest(tokens)
        children = any(node.parent == parent for node in self.tree.nodes)
        rendered = np.asarray(tokens[start:], np.int32)
        fork = None
        if children:
            fork = Fork.TEMPLATE if grown else Fork.REWRITTEN
        return Prompt(tokens=tokens, parent=parent, rendered=rendered, fork=fork)

    def add_reply(
        self,
        messages: Sequence[Message],
        prompt: Prompt,
        tokens: Int32,
        logprobs: Float32,
        version: Int32,
        tools: Sequence[ToolSpec] | None = None,
    ) -> tuple[int, ParsedResponse]:
        """Lay the reply to `prompt` into the tree; returns its node and what the renderer reads in it."""
        parent, turn = prompt.parent, len(self._said)
        if len(prompt.rendered):
            parent = self.tree.append(_rendered(parent, prompt.rendered, turn))
        node = self.tree.append(
            Node(parent=parent, tokens=tokens, sampled=True, logprobs=logprobs, version=version, turn=turn)
        )
        if prompt.fork is not None:
            self.forks[prompt.fork] += 1
        reply = [int(token) for token in tokens]
        parsed = self._renderer.parse_response(reply, tools=_specs(tools), prompt_ids=prompt.tokens)
        answer: Message = {"role": "assistant", "content": parsed.content}
        calls = tool_calls(parsed, node)
        if calls:
            answer["tool_calls"] = list(calls)
        keys = (*(_key(message) for message in messages), _key(answer))
        self._said.append(_Said(keys=keys, prompt=prompt.tokens, reply=reply))
        return node, parsed

    def _longest_said(self, keys: tuple[str, ...]) -> _Said | None:
        known = [said for said in self._said if keys[: len(said.keys)] == said.keys]
        return max(known, key=lambda said: len(said.keys), default=None)

    def _continues(self, said: _Said) -> bool:
        """Whether a later reply already continues this one."""
        return any(
            len(other.keys) > len(said.keys) and other.keys[: len(said.keys)] == said.keys
            for other in self._said
        )

    def _continued(
        self, messages: Sequence[Message], keys: tuple[str, ...], known: _Said | None, tools: list[Any] | None
    ) -> list[int] | None:
        """Known tokens, then only what is new. None: the renderer cannot extend, or a reply is unknown."""
        if known is not None:
            prompt, reply, at = known.prompt, known.reply, len(known.keys)
        else:
            at = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
            if at is None or at == 0:
                return None
            prompt = self._renderer.render_ids(_plain(messages[:at]), tools=tools, add_generation_prompt=True)
            found = self._reply_tokens(keys[at])
            if found is None:
                return None
            reply, at = found, at + 1
        while True:
            end = next(
                (i for i in range(at, len(messages)) if messages[i]["role"] == "assistant"), len(messages)
            )
            bridged = self._renderer.bridge_to_next_turn(prompt, reply, _plain(messages[at:end]), tools=tools)
            past = prompt + reply
            if bridged is None or bridged.token_ids[: len(past)] != past:
                return None
            if end == len(messages):
                return bridged.token_ids
            found = self._reply_tokens(keys[end])
            if found is None:
                return None
            prompt, reply, at = bridged.token_ids, found, end + 1

    def _reply_tokens(self, key: str) -> list[int] | None:
        """The tokens of the latest reply with this text, so that a moved reply is not encoded again."""
        return next((said.reply for said in reversed(self._said) if said.keys[-1] == key), None)

    def _deepest(self, tokens: list[int]) -> tuple[int | None, int]:
        """The node whose path is the longest beginning of `tokens`, and the length of that path."""
        wanted = np.asarray(tokens, np.int32)
        ends: dict[int | None, int] = {None: 0}
        best: int | None = None
        for index, node in enumerate(self.tree.nodes):  # parents come before children
            start = ends.get(node.parent)
            if start is None:
                continue
            end = start + len(node.tokens)
            if end <= len(wanted) and np.array_equal(wanted[start:end], node.tokens):
                ends[index] = end
                if end > ends[best]:
                    best = index
        return best, ends[best]


def encode_conversation(
    renderer: Renderer, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> TokenTree:
    """A scripted conversation, laid out as a rollout would have laid it out, for supervised training.

    Each assistant message becomes a "sampled" node: its text in the tokenizer's own encoding and the stop
    token, with log-probability 0 and version -1, since no engine drew it. Train where the nodes are sampled.
    Raises PolicyError for an assistant message with tool calls, or one that answers nothing.
    """
    transcript = Transcript(renderer)
    stop = renderer.get_stop_token_ids()[0]
    history: list[Message] = []  # as an agent keeps it: replies as the renderer reads them
    for message in messages:
        if message["role"] != "assistant":
            history.append(message)
            continue
        if message.get("tool_calls"):
            raise PolicyError("demonstrations with tool calls cannot be encoded: write the calls as text")
        if not history or history[-1]["role"] == "assistant":
            raise PolicyError("every assistant message of a demonstration must answer a message")
        tokens = np.asarray([*tokenizer.encode(message["content"], add_special_tokens=False), stop], np.int32)
        prompt = transcript.prompt(history)
        _, parsed = transcript.add_reply(
            history, prompt, tokens, np.zeros(len(tokens), np.float32), np.full(len(tokens), -1, np.int32)
        )
        history.append({"role": "assistant", "content": parsed.content})
    return transcript.tree


def tool_calls(parsed: ParsedResponse, node: int) -> tuple[ToolCall, ...]:
    """The well-formed tool calls of a reply, in OpenAI's form; their ids are unique in the tree."""
    from renderers.base import ToolCallParseStatus

    return tuple(
        {
            "id": call.id or f"call_{node}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(parsed.tool_calls)
        if call.status == ToolCallParseStatus.OK
    )


def malformed_calls(parsed: ParsedResponse) -> tuple[str, ...]:
    """The raw text of the tool calls that cannot be read."""
    from renderers.base import ToolCallParseStatus

    return tuple(call.raw for call in parsed.tool_calls if call.status != ToolCallParseStatus.OK)


def _specs(tools: Sequence[ToolSpec] | None) -> list[Any] | None:
    return list(tools) if tools else None


def _rendered(parent: int | None, tokens: Int32, turn: int) -> Node:
    return Node(
        parent=parent,
        tokens=tokens,
        sampled=False,
        logprobs=np.zeros(0, np.float32),
        version=np.zeros(0, np.int32),
        turn=turn,
    )


def _key(message: Message) -> str:
    """What makes two messages the same, whatever form their content and tool calls were given in."""
    content = message.get("content") or ""
    calls = [
        [call["function"]["name"], _arguments(call["function"].get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return json.dumps([message["role"], content, calls, message.get("tool_call_id")], sort_keys=True)


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments  # a model may write arguments that are not JSON


def _plain(messages: Sequence[Message]) -> list[Any]:
    return cast("list[Any]", list(messages))
