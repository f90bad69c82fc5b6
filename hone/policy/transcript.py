"""From messages to prompt tokens, on a token tree that only grows.

A transcript composes what an agent says next, lays engine replies into the tree, and forks the tree where an
agent rewrote history. The rule that must not break: a prompt is exactly the tokens of a path of the tree, and
tokens that an engine sampled are never encoded again where they can be kept.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hone.policy.compose import Composer
from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch
from hone.policy.errors import PolicyError
from hone.policy.forks import Fork, reason
from hone.policy.messages import Tools, key_of, read_reply, reasoning_of
from hone.policy.rendering import ChatRenderer, written_ids
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.types import Float32, Int32, Message, Node, TokenTree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt for the reply that comes after `messages`."""

    messages: tuple[Message, ...]
    tools: Tools
    tokens: Int32  # [T]
    node: int | None  # whose path `tokens` are known to begin with
    end: list[int]  # the last of `tokens`, from before the last stop token on
    match: PrefixMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedReply:
    """A reply in the tree; its `node` is set."""

    reply: Reply
    fork: Fork | None


class Transcript:
    """The token tree of one conversation, and how messages map onto it.

    Invariants: `tree` only grows; each reply is one sampled node with the engine's ids and log-probabilities;
    its parent's path is exactly the prompt the engine was given; no two rendered nodes end the same path.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self.tree = TokenTree()
        self.forks: Counter[Fork] = Counter()
        self._renderer = renderer
        self._conversations = ConversationTree()
        self._composer = Composer(renderer, self.tree, self._conversations)
        self._children: dict[int | None, list[int]] = {}
        self._ends: list[int] = []  # tokens down to each node
        self._turns = 0
        self._tip: MessageNode | None = None  # of the main line
        self._tools = Tools.of(None)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None) -> Prompt:
        """The prompt for the reply that comes after `messages`; adds nothing to the tree.

        The longest known beginning of the conversation keeps its tokens; what follows it is rendered. Raises
        ValueError when there is nothing to reply to, PolicyError for what the renderer refuses.
        """
        if not messages or messages[-1]["role"] == "assistant":
            raise ValueError("a reply needs at least one message, and the last must not be the assistant's")
        if (tools or None) != self._tools.specs:
            self._tools = Tools.of(tools)
        match = self._conversations.match(messages, self._tools.name)
        composed = self._composer.compose(messages, match, self._tools)
        known = match.node.depth  # what is new is copied: the agent may change it before the reply comes
        return Prompt(
            messages=(*messages[:known], *copy.deepcopy(list(messages[known:]))),
            tools=self._tools,
            tokens=composed.tokens,
            node=composed.node,
            end=composed.end,
            match=match,
        )

    def add_reply(
        self,
        prompt: Prompt,
        tokens: Int32,
        logprobs: Float32,
        version: Int32,
        purpose: CallKind = CallKind.MAIN,
    ) -> PlacedReply:
        """Lay the reply to `prompt` into the tree.

        What other replies have added since the prompt was composed is shared, so that calls may overlap.
        """
        match, turn = prompt.match, self._turns
        parent, start = self._deepest(prompt.tokens, prompt.node)
        forked = bool(self._children.get(parent))
        if start < len(prompt.tokens):
            parent = self._append(_rendered(parent, prompt.tokens[start:], turn))
        node = self._append(
            Node(parent=parent, tokens=tokens, sampled=True, logprobs=logprobs, version=version, turn=turn)
        )
        self._turns += 1
        asked = self._conversations.extend(match.node, prompt.messages[match.node.depth :])
        fork = (
            reason(prompt.messages, match, asked, self._conversations, self._tip, purpose) if forked else None
        )
        if fork is not None:
            self.forks[fork] += 1
        parsed = self._renderer.parse_response(
            tokens.tolist(), tools=prompt.tools.specs, prompt_ids=prompt.end
        )
        reply = read_reply(parsed, node)
        said = self._conversations.add_reply(asked, reply.to_message(), node, purpose)
        if purpose is CallKind.MAIN:
            self._tip = said
        return PlacedReply(reply=reply, fork=fork)

    def _append(self, node: Node) -> int:
        index = self.tree.append(node)
        self._children.setdefault(node.parent, []).append(index)
        self._ends.append(len(node.tokens) + (0 if node.parent is None else self._ends[node.parent]))
        return index

    def _deepest(self, tokens: Int32, node: int | None) -> tuple[int | None, int]:
        """The node whose path is the longest beginning of `tokens`, and the length of that path.

        The path of `node` is known to be a beginning of them.
        """
        start = 0 if node is None else self._ends[node]
        best, open_ends = (node, start), [(node, start)]
        while open_ends:
            above, at = open_ends.pop()
            for child in self._children.get(above, ()):
                below = self.tree.nodes[child].tokens
                end = at + len(below)
                if len(below) and end <= len(tokens) and np.array_equal(tokens[at:end], below):
                    open_ends.append((child, end))
                    best = max(best, (child, end), key=lambda found: found[1])
        return best


def encode_conversation(
    renderer: ChatRenderer,
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] | None = None,
) -> TokenTree:
    """A scripted conversation, placed out as a rollout would have placed it out, for supervised training.

    Each assistant message becomes a "sampled" node: its text in the tokenizer's own encoding and the stop
    token, with log-probability 0 and version -1, since no engine drew it; one with tool calls or reasoning in
    the tokens that the renderer writes for it. Train where the nodes are sampled. Raises PolicyError for an
    assistant message that answers nothing, or one that the renderer cannot write.
    """
    transcript = Transcript(renderer)
    history: list[Message] = []  # as an agent keeps it: replies as the renderer reads them
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            history.append(message)
            continue
        if not history or history[-1]["role"] == "assistant":
            raise PolicyError("every assistant message of a demonstration must answer a message")
        if message.get("tool_calls") or message.get("reasoning_content"):
            ids = _demonstrated(renderer, messages, at, tools)
        else:
            ids = tokenizer.encode(message["content"], add_special_tokens=False)
            ids = [*ids, renderer.get_stop_token_ids()[0]]
        placed = transcript.add_reply(
            transcript.prompt(history, tools),
            np.asarray(ids, np.int32),
            np.zeros(len(ids), np.float32),
            np.full(len(ids), -1, np.int32),
        )
        said = placed.reply.to_message()
        if said.get("tool_calls"):
            said["tool_calls"] = message["tool_calls"]  # with the ids that the results name
        history.append(said)
    return transcript.tree


def _demonstrated(
    renderer: ChatRenderer, messages: Sequence[Message], at: int, tools: Sequence[ToolSpec] | None
) -> list[int]:
    """The tokens of a reply with tool calls or reasoning, which must read as the reply that it is."""
    said = messages[at]
    opening = renderer.render_ids([{"role": "user", "content": "x"}], tools=tools, add_generation_prompt=True)
    stop = next((i for i in range(at + 1, len(messages)) if messages[i]["role"] == "assistant"), None)
    for new in ((), messages[at + 1 : stop]):
        ids = written_ids(renderer, said, new, tools=tools)
        if ids is not None:
            parsed = renderer.parse_response(ids, tools=tools, prompt_ids=opening)
            read = read_reply(parsed, 0).to_message()
            if key_of(read) == key_of(said) and reasoning_of(read) == reasoning_of(said):
                return ids
    raise PolicyError(
        "a demonstration with tool calls or reasoning cannot be encoded: the renderer cannot read back what "
        "it writes for it, so write it as text"
    )


def _rendered(parent: int | None, tokens: Int32, turn: int) -> Node:
    return Node(
        parent=parent,
        tokens=tokens,
        sampled=False,
        logprobs=np.zeros(0, np.float32),
        version=np.zeros(0, np.int32),
        turn=turn,
    )
