"""The policy as agents see it: messages in, a reply out, every token recorded as the engine saw it.

    messages -> Transcript.prompt -> Engine.generate -> Transcript.add_reply -> Reply

Invariant: the tree's path to a reply is the engine's prompt, and the reply's node holds the engine's ids and
log-probabilities; nothing is encoded twice.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import asyncio
import copy
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from hone.policy.compose import Composed, Composer
from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch
from hone.policy.engine import Engine, Finish, Sampling, derive_seed
from hone.policy.errors import PolicyError
from hone.policy.messages import Tools, read_reply
from hone.policy.rendering import ChatRenderer, verified_reply_ids
from hone.policy.reply import CallKind, Reply, ToolSpec, ToolSpecs
from hone.policy.workers import LONG, Parameters, Result, run_by_size, text_size
from hone.types import UNKNOWN_EXPERT, Call, Float32, Int32, Message, Node, Routing, TokenTree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Fork(StrEnum):
    """Why a prompt does not extend the last reply of its conversation."""

    RETRY = "retry"  # the same messages were sent again
    TEMPLATE = "template"  # the chat template renders earlier messages differently now
    AUXILIARY = "side"  # an auxiliary call, or the main conversation after one
    THINKING = "thinking"  # the reasoning of earlier replies was removed
    COMPACTED = "compacted"  # earlier messages were dropped or summarised
    REWRITTEN = "rewritten"  # any other change of the history or the tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt for the reply to `messages`."""

    messages: tuple[Message, ...]
    tools: Tools
    composed: Composed
    match: PrefixMatch


class Transcript:
    """The token tree of one conversation, and how messages map onto it.

    Invariants: `tree` only grows; each reply is one sampled node with the engine's ids and log-probabilities;
    its parent's path is exactly the engine's prompt; no two rendered nodes end the same path.
    Threads may share it: each method holds `lock`.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self.tree = TokenTree()
        self.forks: Counter[Fork] = Counter()
        self.lock = threading.Lock()
        self._renderer = renderer
        self._conversations = ConversationTree()
        self._composer = Composer(renderer, self.tree, self._conversations)
        self._children: dict[int | None, list[int]] = {}
        self._ends: list[int] = []  # path length of each node, in tokens
        self._turns = 0
        self._tip: MessageNode | None = None  # the last main reply
        self._tools = Tools.of(None)

    def prompt(self, messages: Sequence[Message], tools: ToolSpecs = None) -> Prompt:
        """Return the prompt for the reply to `messages`; the tree stays unchanged.

        The longest known prefix of the conversation keeps its tokens; the rest is rendered. Raises ValueError
        if the last message is the assistant's, PolicyError if the renderer rejects the messages.
        """
        if not messages or messages[-1]["role"] == "assistant":
            raise ValueError("a reply needs at least one message, and the last must not be the assistant's")
        with self.lock:
            return self._prompt(messages, tools)

    def _prompt(self, messages: Sequence[Message], tools: ToolSpecs) -> Prompt:
        if (tools or None) != self._tools.specs:
            self._tools = Tools.of(tools)
        match = self._conversations.match(messages, self._tools.name)
        known = match.node.depth  # copy the new messages: the agent may modify them during the call
        return Prompt(
            messages=(*messages[:known], *copy.deepcopy(list(messages[known:]))),
            tools=self._tools,
            composed=self._composer.compose(messages, match, self._tools),
            match=match,
        )

    def add_reply(
        self,
        prompt: Prompt,
        tokens: Int32,
        logprobs: Float32,
        version: Int32,
        purpose: CallKind = CallKind.MAIN,
        routing: Routing | None = None,
    ) -> tuple[Reply, Fork | None]:
        """Add the reply to `prompt` to the tree; return it with its node, and why it forks the tree.

        Calls may overlap: nodes that other replies added since the prompt was composed are shared. `routing`
        is the completion's; nodes that are in the tree already keep theirs.
        """
        with self.lock:
            return self._add_reply(prompt, tokens, logprobs, version, purpose, routing)

    def _add_reply(
        self,
        prompt: Prompt,
        tokens: Int32,
        logprobs: Float32,
        version: Int32,
        purpose: CallKind,
        routing: Routing | None,
    ) -> tuple[Reply, Fork | None]:
        routing = None if routing is None else _by_predicted_token(routing)
        match, composed, turn = prompt.match, prompt.composed, self._turns
        parent, start = self._deepest(composed.tokens, composed.node)
        forked = bool(self._children.get(parent))
        if start < len(composed.tokens):
            rendered = composed.tokens[start:].copy()  # a view would keep the whole prompt alive
            experts = None if routing is None else routing[start : len(composed.tokens)].copy()
            parent = self._append(_rendered(parent, rendered, turn, experts))
        self._composer.remember_path(parent, composed.tokens)
        node = self._append(
            Node(
                parent=parent,
                tokens=tokens,
                sampled=True,
                logprobs=logprobs,
                version=version,
                turn=turn,
                routing=None if routing is None else routing[len(composed.tokens) :].copy(),
            )
        )
        self._turns += 1
        request_node = self._conversations.extend(match.node, prompt.messages[match.node.depth :])
        fork = (
            _fork_reason(prompt.messages, match, request_node, self._conversations, self._tip, purpose)
            if forked
            else None
        )
        if fork is not None:
            self.forks[fork] += 1
        parsed = self._renderer.parse_response(
            tokens.tolist(), tools=prompt.tools.specs, prompt_ids=composed.end
        )
        reply = read_reply(parsed, node)
        reply_node = self._conversations.add_reply(request_node, reply.to_message(), node, purpose)
        if purpose is CallKind.MAIN:
            self._tip = reply_node
        return reply, fork

    def _append(self, node: Node) -> int:
        index = self.tree.append(node)
        self._children.setdefault(node.parent, []).append(index)
        self._ends.append(len(node.tokens) + (0 if node.parent is None else self._ends[node.parent]))
        return index

    def _deepest(self, tokens: Int32, node: int | None) -> tuple[int | None, int]:
        """Return the node whose path is the longest prefix of `tokens`, and the length of that path.

        Assumes that the path of `node` is a prefix.
        """
        start = 0 if node is None else self._ends[node]
        best, pending = (node, start), [(node, start)]
        while pending:
            above, at = pending.pop()
            for child in self._children.get(above, ()):
                below = self.tree.nodes[child].tokens
                end = at + len(below)
                if len(below) and end <= len(tokens) and np.array_equal(tokens[at:end], below):
                    pending.append((child, end))
                    best = max(best, (child, end), key=lambda found: found[1])
        return best


def _fork_reason(
    messages: Sequence[Message],
    match: PrefixMatch,
    request_node: MessageNode,
    conversations: ConversationTree,
    tip: MessageNode | None,
    purpose: CallKind,
) -> Fork:
    """Return why `messages` fork the tree; call it only for a fork.

    `match` is their longest known prefix, `request_node` their node, `tip` the last main reply.
    """
    if request_node.answered:
        return Fork.RETRY
    reply = match.reply
    if reply is not None and all(m["role"] != "assistant" for m in messages[reply.depth :]):
        if not reply.followers:
            return Fork.TEMPLATE
        if purpose is CallKind.MAIN and reply.followers == {CallKind.AUXILIARY}:
            return Fork.AUXILIARY
    if purpose is CallKind.AUXILIARY:
        return Fork.AUXILIARY
    if match.reasoning_dropped:
        return Fork.THINKING
    return _rewrite_reason(messages, match, conversations, tip)


def _rewrite_reason(
    messages: Sequence[Message], match: PrefixMatch, conversations: ConversationTree, tip: MessageNode | None
) -> Fork:
    """Return COMPACTED if a reply moved to a smaller depth or a shorter history keeps no recorded reply.

    A conversation without any common prefix with another one is an auxiliary call.
    """
    known = match.node.depth
    kept = match.reply is not None
    for at in range(known, len(messages)):
        if messages[at]["role"] == "assistant" and (depths := conversations.depths(messages[at])):
            if max(depths) > at + 1 and at + 1 not in depths:
                return Fork.COMPACTED
            kept = True
    if kept:
        return Fork.REWRITTEN
    if known == 0:
        return Fork.AUXILIARY
    return Fork.COMPACTED if tip is not None and len(messages) < tip.depth else Fork.REWRITTEN


def encode_conversation(
    renderer: ChatRenderer,
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: ToolSpecs = None,
) -> TokenTree:
    """Return the token tree of a scripted conversation, as a rollout would build it, for supervised training.

    Each assistant message becomes a "sampled" node with log-probability 0 and version -1: the encoded text
    and the stop token, or the renderer's tokens for a message with tool calls or reasoning. Train on the
    sampled nodes. Raises PolicyError for an assistant message that answers no message or cannot be rendered.
    """
    transcript = Transcript(renderer)
    history: list[Message] = []  # an agent's history: replies as the renderer parses them
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            history.append(message)
            continue
        if not history or history[-1]["role"] == "assistant":
            raise PolicyError("every assistant message of a demonstration must answer a message")
        if message.get("tool_calls") or message.get("reasoning_content"):
            stop = next((i for i in range(at + 1, len(messages)) if messages[i]["role"] == "assistant"), None)
            ids = verified_reply_ids(renderer, message, messages[at + 1 : stop], tools=tools)
            if ids is None:
                raise PolicyError(
                    "a demonstration with tool calls or reasoning cannot be encoded: the renderer does not "
                    "parse its own output back; write the reply as plain text"
                )
        else:
            ids = tokenizer.encode(message["content"], add_special_tokens=False)
            ids = [*ids, renderer.get_stop_token_ids()[0]]
        reply, _ = transcript.add_reply(
            transcript.prompt(history, tools),
            np.asarray(ids, np.int32),
            np.zeros(len(ids), np.float32),
            np.full(len(ids), -1, np.int32),
        )
        parsed_message = reply.to_message()
        if parsed_message.get("tool_calls"):
            parsed_message["tool_calls"] = message["tool_calls"]  # keep the ids that tool results refer to
        history.append(parsed_message)
    return transcript.tree


def _by_predicted_token(routing: Routing) -> Routing:
    """Return the routing of positions [n, layers, k] as that of the tokens they predict, [n + 1, ...]."""
    first = np.full_like(routing, UNKNOWN_EXPERT, shape=(1, *routing.shape[1:]))  # no position predicts it
    return np.concatenate([first, routing])


def _rendered(parent: int | None, tokens: Int32, turn: int, routing: Routing | None = None) -> Node:
    return Node(
        parent=parent,
        tokens=tokens,
        sampled=False,
        logprobs=np.zeros(0, np.float32),
        version=np.zeros(0, np.int32),
        turn=turn,
        routing=routing,
    )


class Chat:
    """One conversation with the policy.

    `session` is its id at the engine. The renderer's stop tokens are added to those of `sampling`; each reply
    gets its own seed, derived from the sampling seed.
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, sampling: Sampling, *, session: str) -> None:
        stop = dict.fromkeys((*sampling.stop_token_ids, *renderer.get_stop_token_ids()))
        self._engine = engine
        self._sampling = dataclasses.replace(sampling, stop_token_ids=tuple(stop))
        self._transcript = Transcript(renderer)
        self._session = session
        self._requests = 0
        self._turn = asyncio.Lock()  # one request at a time uses the transcript
        self.calls: list[Call] = []

    @property
    def tree(self) -> TokenTree:
        return self._transcript.tree

    @property
    def forks(self) -> Counter[Fork]:
        """Number of forks of the tree, by reason."""
        return self._transcript.forks

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for a whole reply."""
        return self._engine.context_tokens - self._sampling.max_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        """Return the length of the prompt for these messages, in tokens; changes nothing. Thread-safe."""
        return len(self._transcript.prompt(messages, tools).composed.tokens)

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        """Sample the reply that follows `messages`.

        A truncated reply has no stop token; the next prompt adds one as a rendered token, never trained on. A
        failed call leaves the tree unchanged. Raises ContextOverflow, EngineError, and ValueError
        when the last message is the assistant's. A long prompt is rendered in a thread.
        """
        started = time.monotonic()
        size = text_size(messages, tools)
        prompt = await self._with_transcript(size, self._transcript.prompt, list(messages), tools)
        sampling = dataclasses.replace(self._sampling, seed=derive_seed(self._sampling.seed, self._requests))
        self._requests += 1
        tokens = prompt.composed.tokens
        completion = await self._engine.generate(tokens, sampling, session=self._session)
        reply, fork = await self._with_transcript(
            0,
            self._transcript.add_reply,
            prompt,
            completion.token_ids,
            completion.logprobs,
            completion.version,
            purpose,
            completion.routing,
        )
        call = Call(
            index=len(self.calls),
            node=reply.node,
            purpose=purpose,
            fork=fork,
            prompt_tokens=len(tokens),
            sampled_tokens=len(completion.token_ids),
            seconds=time.monotonic() - started,
        )
        self.calls.append(call)
        return dataclasses.replace(
            reply,
            truncated=completion.finish is not Finish.STOP,
            prompt_tokens=call.prompt_tokens,
            sampled_tokens=call.sampled_tokens,
        )

    async def _with_transcript(
        self,
        size: int,
        method: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Call a method of the transcript; in a thread if the text is long, or a thread measures just now."""
        async with self._turn:
            busy = self._transcript.lock.locked()
            return await run_by_size(LONG + 1 if busy else size, method, *args, **kwargs)

    async def close(self) -> None:
        """End the conversation and free its KV cache."""
        await self._engine.release(self._session)
