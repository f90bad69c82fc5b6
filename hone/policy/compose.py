"""The tokens of a prompt, of which as many as possible are tokens that were there before.

    extend     the known beginning of the conversation (a path of the tree), then what is new
    rebase     a history that begins anew: its opening is rendered, replies sampled before keep their tokens
    rerender   everything rendered from text

Behind every reply comes what `ChatRenderer.extend` gives. A reply that cannot be extended as it was sampled,
or that nobody sampled (its text was changed, its reasoning left out), is written: encoded from its text.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch, Traits
from hone.policy.messages import Tools, call_ids, key_of, reasoning_of, text_of
from hone.policy.rendering import ChatRenderer, written_ids
from hone.types import Int32, Message, TokenTree

_WINDOW = 256  # tokens before its last extension that a renderer is shown of a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    tokens: Int32  # [T]
    node: int | None  # whose path `tokens` are known to begin with
    end: list[int]  # the last of `tokens`, from before the last stop token on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A reply in a conversation that is being composed."""

    at: int  # its message
    recorded: tuple[MessageNode, int] | None  # where and in which node it was sampled; None: nowhere
    end: list[int]  # the end of its prompt
    traits: Traits  # of the messages before it

    @property
    def node(self) -> int:
        return -1 if self.recorded is None else self.recorded[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """The tokens from a reply to the end of a prompt."""

    tokens: list[int]
    end: list[int]
    kept: bool  # they begin with the reply's sampled tokens


class Composer:
    """Composes the prompts of one token tree; adds nothing to it."""

    def __init__(self, renderer: ChatRenderer, tree: TokenTree, conversations: ConversationTree) -> None:
        self._renderer = renderer
        self._tree = tree
        self._conversations = conversations
        self._pieces = _Recent(64)  # so that measuring a prompt and then sending it renders once
        self._renders = _Recent(4)
        self._asked: Hashable = None
        self._composed: Composed | None = None
        self._walked: tuple[int | None, Int32] = (None, np.zeros(0, np.int32))  # a node and its path's tokens

    def compose(self, messages: Sequence[Message], match: PrefixMatch, tools: Tools) -> Composed:
        """The prompt for the reply to `messages`, of which `match` is the longest known beginning.

        Raises PolicyError for what the renderer refuses.
        """
        asked = (len(self._tree.nodes), match.node, match.sample, _forms(messages[match.node.depth :]))
        if asked != self._asked:  # a prompt is measured, then sent
            self._composed = (
                self._extend(messages, match, tools)
                or self._rebase(messages, tools)
                or self._rerender(messages, tools)
            )
            self._asked = asked
        assert self._composed is not None
        return self._composed

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
        """The tokens from the reply of `turn` to the end of the prompt; None where one cannot be extended."""
        tokens: list[int] = []
        kept: bool | None = None
        while True:
            stop = next(
                (i for i in range(turn.at + 1, len(messages)) if messages[i]["role"] == "assistant"), None
            )
            following = messages[turn.at + 1 : stop]
            sampled = self._sampled(turn, messages[turn.at], following, tools)
            found = sampled or self._written(turn, messages[turn.at], following, tools)
            if found is None:
                return None
            reply, extension = found
            kept = sampled is not None if kept is None else kept
            tokens += [*reply, *extension]
            end = [*turn.end, *reply][-_WINDOW:] + extension
            if stop is None:
                return _Tail(tokens=tokens, end=end, kept=kept)
            recorded = self._conversations.recorded(messages[stop], key_of(messages[stop - 1]), turn.node)
            turn = _Turn(at=stop, recorded=recorded, end=end, traits=_after(turn, messages[turn.at]))

    def _sampled(
        self, turn: _Turn, said: Message, following: Sequence[Message], tools: Tools
    ) -> tuple[list[int], list[int]] | None:
        """The reply as it was sampled, and its extension."""
        if turn.recorded is None:
            return None
        reply: list[int] = self._tree.nodes[turn.node].tokens.tolist()
        extension = self._extension(turn, reply, said, following, tools)
        return None if extension is None else (reply, extension)

    def _written(
        self, turn: _Turn, said: Message, following: Sequence[Message], tools: Tools
    ) -> tuple[list[int], list[int]] | None:
        """The reply encoded from its text, as it stands in history or else as a reply, and its extension."""
        if turn.recorded is not None:
            said = _reasoned(said, turn.recorded[0])
        for new in (following, ()):
            reply = self._pieces.get(
                ("written", _forms([said, *new]), tools.name),
                lambda new=new: written_ids(self._renderer, said, new, tools=tools.specs),
            )
            if reply is not None:
                break
        else:
            return None
        extension = self._extension(turn, reply, said, following, tools)
        return None if extension is None else (reply, extension)

    def _extension(
        self,
        turn: _Turn,
        reply: list[int],
        said: Message,
        following: Sequence[Message],
        tools: Tools,
    ) -> list[int] | None:
        return self._pieces.get(
            (
                "extension",
                _packed(turn.end),
                _packed(reply),
                _forms([said, *following]),
                turn.traits,
                tools.name,
            ),
            lambda: self._renderer.extend(
                turn.end, reply, said, following, tools=tools.specs, traits=turn.traits
            ),
        )

    def _render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """All of the messages from text, replies with the reasoning that was recorded for them."""
        filled: list[Message] = []
        before = ("", "", "")
        for message in messages:
            repeated = (
                self._conversations.recorded(message, before, -1) if message["role"] == "assistant" else None
            )
            filled.append(_reasoned(message, repeated[0]) if repeated else message)
            before = key_of(message)
        ids = self._renders.get(
            (_forms(filled), tools.name),
            lambda: self._renderer.render_ids(filled, tools=tools.specs, add_generation_prompt=True),
        )
        assert ids is not None
        return ids

    def _path(self, node: int | None) -> Int32:
        """[T] the tokens down to `node`; quick when the path goes on from the one asked for last."""
        pieces: list[Int32] = []
        above, before = self._walked
        at = node
        while at is not None and at != above:
            pieces.append(self._tree.nodes[at].tokens)
            at = self._tree.nodes[at].parent
        if at is not None:
            pieces.append(before)
        tokens = np.concatenate(pieces[::-1]) if pieces else np.zeros(0, np.int32)
        self._walked = (node, tokens)
        return tokens

    def _end_of(self, node: int | None) -> list[int]:
        """The end of the path down to `node`: its last extension and `_WINDOW` tokens before it."""
        pieces: list[Int32] = []
        before = 0
        extension = True
        while node is not None and before < _WINDOW:
            extension = extension and not self._tree.nodes[node].sampled
            pieces.append(self._tree.nodes[node].tokens)
            before += 0 if extension else len(pieces[-1])
            node = self._tree.nodes[node].parent
        return [token for piece in reversed(pieces) for token in piece.tolist()]


class _Recent:
    """The last results of pure functions, by what they were computed from."""

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


def _after(turn: _Turn, said: Message) -> Traits:
    """What the conversation has held once the reply of `turn` is said; other messages add nothing."""
    reasoning = reasoning_of(said) or "" if turn.recorded is None else turn.recorded[0].reasoning
    return turn.traits.after(said, first=False, reasoning=reasoning)


def _reasoned(said: Message, node: MessageNode) -> Message:
    """The message with the reasoning of the reply that it repeats, which a client may have left out."""
    if reasoning_of(said) is not None or not node.reasoning:
        return said
    return {**said, "reasoning_content": node.reasoning}


def _packed(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _forms(messages: Sequence[Message]) -> Hashable:
    """Everything of the messages that a renderer may read."""
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
