"""Compose prompts that reuse as many recorded tokens as possible.

    extend     reuse the known prefix of the conversation (a path of the tree), then add the new messages
    rebase     render the opening of a rewritten history; recorded replies in it keep their sampled tokens
    rerender   render everything from text

`ChatRenderer.extend` gives the tokens after each reply. A reply is encoded from its text if it cannot be
extended as sampled, or was never sampled (its text was changed or its reasoning removed).
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch, Traits
from hone.policy.messages import Tools, call_ids, key_of, reasoning_of, text_of
from hone.policy.rendering import ChatRenderer, RenderedReply, rendered_reply_ids
from hone.types import Int32, Message, TokenTree

WINDOW = 256  # tokens before the last extension of a prompt that a renderer gets


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    tokens: Int32  # [T]
    node: int | None  # the path of this node is a known prefix of `tokens`
    end: list[int]  # the last of `tokens`, including at least the last stop token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A reply inside the messages to compose."""

    at: int  # index of its message
    recorded: tuple[MessageNode, int] | None  # its message node and tree node; None if never sampled
    end: list[int]  # the end of its prompt
    traits: Traits  # traits of the messages before it

    @property
    def node(self) -> int:
        return -1 if self.recorded is None else self.recorded[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """The tokens from a reply to the end of a prompt."""

    tokens: list[int]
    end: list[int]
    kept: bool  # `tokens` start with the reply's sampled tokens


class Composer:
    """Composes the prompts of one token tree; never modifies the tree."""

    def __init__(self, renderer: ChatRenderer, tree: TokenTree, conversations: ConversationTree) -> None:
        self._renderer = renderer
        self._tree = tree
        self._conversations = conversations
        self._pieces = _LruCache(64)  # to render once for measuring and sending
        self._renders = _LruCache(4)
        self._last_request: Hashable = None
        self._composed: Composed | None = None
        self._last_path: tuple[int | None, Int32] = (None, np.zeros(0, np.int32))  # node, tokens of its path

    def compose(self, messages: Sequence[Message], match: PrefixMatch, tools: Tools) -> Composed:
        """Return the prompt for the reply to `messages`; `match` is their longest known prefix.

        Raises PolicyError if the renderer rejects the messages.
        """
        request = (len(self._tree.nodes), match.node, match.sample, _forms(messages[match.node.depth :]))
        if request != self._last_request:  # an agent measures a prompt, then sends it
            self._composed = (
                self._extend(messages, match, tools)
                or self._rebase(messages, tools)
                or self._rerender(messages, tools)
            )
            self._last_request = request
        assert self._composed is not None
        return self._composed

    def remember_path(self, node: int | None, tokens: Int32) -> None:
        """Store `tokens` [T], the path to `node`: the next prompt most likely extends it."""
        self._last_path = (node, tokens)

    def _extend(self, messages: Sequence[Message], match: PrefixMatch, tools: Tools) -> Composed | None:
        if match.reply is None or match.sample is None or match.reply.parent is None:
            return None
        parent = self._tree.nodes[match.sample].parent
        turn = _Turn(
            at=match.reply.depth - 1,
            recorded=(match.reply, match.sample),
            end=self._end_of(parent),
            traits=match.reply.parent.traits,
        )
        tail = self._follow(messages, turn, tools)
        if tail is None:
            return None
        tokens = np.concatenate([self._path(parent), np.asarray(tail.tokens, np.int32)])
        return Composed(tokens=tokens, node=match.sample if tail.kept else parent, end=tail.end)

    def _rebase(self, messages: Sequence[Message], tools: Tools) -> Composed | None:
        for at in range(1, len(messages)):
            if messages[at]["role"] != "assistant":
                continue
            recorded = self._conversations.recorded(messages[at], key_of(messages[at - 1]), -1)
            if recorded is not None:
                break
        else:
            return None
        opening = self._render(messages[:at], tools)
        traits = Traits()
        for i, message in enumerate(messages[:at]):
            traits = traits.after(message, first=i == 0, reasoning=reasoning_of(message) or "")
        turn = _Turn(at=at, recorded=recorded, end=opening, traits=traits)
        tail = self._follow(messages, turn, tools)
        if tail is None:
            return None
        return Composed(tokens=np.asarray([*opening, *tail.tokens], np.int32), node=None, end=tail.end)

    def _rerender(self, messages: Sequence[Message], tools: Tools) -> Composed:
        ids = self._render(messages, tools)
        return Composed(tokens=np.asarray(ids, np.int32), node=None, end=ids)

    def _follow(self, messages: Sequence[Message], turn: _Turn, tools: Tools) -> _Tail | None:
        """Return the tokens from the reply of `turn` to the end; None if some reply cannot be extended."""
        tokens: list[int] = []
        kept: bool | None = None
        while True:
            stop = next(
                (i for i in range(turn.at + 1, len(messages)) if messages[i]["role"] == "assistant"), None
            )
            following = messages[turn.at + 1 : stop]
            for sampled, ids, message in self._encodings(turn, messages[turn.at], following, tools):
                reply = RenderedReply(prompt=turn.end, tokens=ids, message=message, traits=turn.traits)
                extension = self._extension(reply, following, tools)
                if extension is not None:
                    kept = sampled if kept is None else kept
                    break
            else:
                return None
            tokens += [*ids, *extension]
            end = [*turn.end, *ids][-WINDOW:] + extension
            if stop is None:
                return _Tail(tokens=tokens, end=end, kept=kept)
            recorded = self._conversations.recorded(messages[stop], key_of(messages[stop - 1]), turn.node)
            turn = _Turn(at=stop, recorded=recorded, end=end, traits=_after(turn, messages[turn.at]))

    def _encodings(
        self, turn: _Turn, message: Message, following: Sequence[Message], tools: Tools
    ) -> Iterator[tuple[bool, list[int], Message]]:
        """Yield the reply as sampled (True), then as encoded from its text, in history or as the last one."""
        if turn.recorded is not None:
            yield True, self._tree.nodes[turn.node].tokens.tolist(), message
            message = _with_reasoning(message, turn.recorded[0])
        for new in (following, ()):
            ids = self._pieces.get(
                ("encoded", _forms([message, *new]), tools.name),
                lambda new=new: rendered_reply_ids(self._renderer, message, new, tools=tools.specs),
            )
            if ids is not None:
                yield False, ids, message
                return

    def _extension(
        self, reply: RenderedReply, following: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        forms = _forms([reply.message, *following])
        return self._pieces.get(
            ("extension", _packed(reply.prompt), _packed(reply.tokens), forms, reply.traits, tools.name),
            lambda: self._renderer.extend(reply, following, tools.specs),
        )

    def _render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Return all messages encoded from text, with the recorded reasoning of replies."""
        filled: list[Message] = []
        before = ("", "", "")
        for message in messages:
            repeated = (
                self._conversations.recorded(message, before, -1) if message["role"] == "assistant" else None
            )
            filled.append(_with_reasoning(message, repeated[0]) if repeated else message)
            before = key_of(message)
        ids = self._renders.get(
            (_forms(filled), tools.name),
            lambda: self._renderer.render_ids(filled, tools=tools.specs, add_generation_prompt=True),
        )
        assert ids is not None
        return ids

    def _path(self, node: int | None) -> Int32:
        """Return the tokens [T] of the path to `node`; fast if it extends the path of the last call."""
        above, before = self._last_path
        if node == above:
            return before
        pieces: list[Int32] = []
        at = node
        while at is not None and at != above:
            pieces.append(self._tree.nodes[at].tokens)
            at = self._tree.nodes[at].parent
        if at is not None:
            pieces.append(before)
        tokens = np.concatenate(pieces[::-1])
        self._last_path = (node, tokens)
        return tokens

    def _end_of(self, node: int | None) -> list[int]:
        """Return the end of the path to `node`: its last extension and `WINDOW` tokens before it."""
        pieces: list[Int32] = []
        before = 0
        extension = True
        while node is not None and before < WINDOW:
            extension = extension and not self._tree.nodes[node].sampled
            pieces.append(self._tree.nodes[node].tokens)
            before += 0 if extension else len(pieces[-1])
            node = self._tree.nodes[node].parent
        return [token for piece in reversed(pieces) for token in piece.tolist()]


class _LruCache:
    """An LRU cache for results of pure functions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._results: OrderedDict[Hashable, list[int] | None] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], list[int] | None]) -> list[int] | None:
        if key in self._results:
            self._results.move_to_end(key)
            return self._results[key]
        result = self._results[key] = compute()
        if len(self._results) > self._capacity:
            self._results.popitem(last=False)
        return result


def _after(turn: _Turn, reply_message: Message) -> Traits:
    """Return the traits after the reply of `turn`; other messages do not change them."""
    reasoning = reasoning_of(reply_message) or "" if turn.recorded is None else turn.recorded[0].reasoning
    return turn.traits.after(reply_message, first=False, reasoning=reasoning)


def _with_reasoning(reply_message: Message, node: MessageNode) -> Message:
    """Return the message with the reasoning of its recorded reply if the client omitted it."""
    if reasoning_of(reply_message) is not None or not node.reasoning:
        return reply_message
    return {**reply_message, "reasoning_content": node.reasoning}


def _packed(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _forms(messages: Sequence[Message]) -> Hashable:
    """Return a cache key of everything in the messages that a renderer may read."""
    return tuple(
        (
            key_of(message),
            text_of(message.get("content")),
            reasoning_of(message),
            tuple(call_ids(message)),
            message.get("tool_call_id"),
            message.get("name"),
        )
        for message in messages
    )
