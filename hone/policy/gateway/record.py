"""What was said in a session: its calls, on a trie of messages.

Two requests with the same messages and tools are one call asked twice. Invariant: an assistant message that a
client hands back is the reply that was sampled there, word for word, whatever the client's formatting did.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from hone.policy.conversation_tree import ConversationTree, MessageNode
from hone.policy.gateway.chat_request import ClientReply
from hone.policy.messages import key_of
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.types import Message

_QUOTED = 200  # characters of a broken reply that a client quotes at least, where there are so many


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A call that was answered: the request, and the reply."""

    index: int  # in the session, in the order of the answers
    tools: tuple[ToolSpec, ...]
    reply: Reply
    purpose: CallKind
    started: float  # monotonic seconds
    ended: float
    node: MessageNode = field(repr=False)  # of the reply
    shown: ClientReply | None = None  # the reply as its client saw it last
    retries: int = 0  # how often the client asked again
    followed_by: Sequence[Message] = ()  # of the main line: its next request, for the observer

    @property
    def messages(self) -> list[Message]:
        """The request in Hone's own form; replies stand in it as they were sampled."""
        assert self.node.parent is not None
        return self.node.parent.messages()


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call whose answer may still be on the way."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...]
    answer: asyncio.Future[Exchange]
    retries: int = 0


class Record:
    """Finds the call that a request repeats."""

    def __init__(self) -> None:
        self.conversations = ConversationTree(compare_reasoning=False)
        self.pending: list[PendingCall] = []
        self._answered: dict[MessageNode, list[Exchange]] = {}  # by the last message of the request

    def recorded_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages of a request, known ones as they were recorded."""
        known = self.conversations.match(messages).node
        return [*known.messages(), *messages[known.depth :]]

    def find(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> PendingCall | Exchange | None:
        """Return the call that was asked with these recorded messages and tools before."""
        for exchange in self._exchanges_after(messages):
            if exchange.tools == tools:
                return exchange
        return next((c for c in self.pending if c.tools == tools and _are_same(c.messages, messages)), None)

    def add_reply(self, call: PendingCall, reply: Reply, index: int, purpose: CallKind) -> MessageNode:
        """Record the reply to a call; nothing is recorded of calls that get none."""
        known = self.conversations.match(call.messages).node
        asked = self.conversations.extend(known, call.messages[known.depth :])
        return self.conversations.add_reply(asked, reply.to_message(), index, purpose)

    def add_exchange(self, exchange: Exchange) -> None:
        assert exchange.node.parent is not None
        self._answered.setdefault(exchange.node.parent, []).append(exchange)

    def interrupted(self, messages: list[Message]) -> tuple[Exchange, ClientReply] | None:
        """Return the call whose reply these messages want the rest of, and that rest.

        So asks a client that had begun to read a reply: the conversation ends with a beginning of the reply,
        as the assistant's, and a user's message that quotes where it ended.
        """
        if len(messages) < 3 or messages[-2]["role"] != "assistant" or messages[-1]["role"] != "user":
            return None
        begun, request = messages[-2]["content"], messages[-1]["content"]
        if not begun.strip() or messages[-2].get("tool_calls") or begun.strip()[-_QUOTED:] not in request:
            return None
        for exchange in self._exchanges_after(messages[:-2]):
            shown = exchange.shown
            if shown and shown.content.startswith(begun) and (len(shown.content) > len(begun) or shown.calls):
                rest = dataclasses.replace(shown, content=shown.content[len(begun) :], reasoning=None)
                return exchange, rest
        return None

    def _exchanges_after(self, messages: list[Message]) -> Sequence[Exchange]:
        node = self.conversations.match(messages).node
        return self._answered.get(node, ()) if node.depth == len(messages) else ()


def _are_same(some: list[Message], others: list[Message]) -> bool:
    return len(some) == len(others) and all(
        one is other or key_of(one) == key_of(other) for one, other in zip(some, others, strict=True)
    )
