"""The calls of a session, on a trie of messages.

Two requests with the same messages and tools are one call. Invariant: an assistant message that a client
sends back is the reply that was sampled there, token for token, however the client formatted it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from hone.policy.conversation_tree import ConversationTree, MessageNode
from hone.policy.gateway.chat_request import ChatRequest, ClientReply
from hone.policy.messages import key_of
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.types import Message
from hone.utils import clock

_QUOTED = 200  # trailing characters of an interrupted reply that a client quotes at least


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """An answered call: the request and its reply."""

    index: int  # in the session, in the order of the answers
    tools: tuple[ToolSpec, ...]
    reply: Reply
    purpose: CallKind
    started: float  # monotonic seconds
    ended: float
    node: MessageNode = field(repr=False)  # of the reply
    shown: ClientReply | None = None  # the reply as its client saw it last
    retries: int = 0  # repeated requests for this reply
    followed_by: Sequence[Message] = ()  # the next request of the main line, for the observer

    @property
    def messages(self) -> list[Message]:
        """The request in Hone's own form, with replies as they were sampled."""
        assert self.node.parent is not None
        return self.node.parent.messages()


@dataclass(slots=True, eq=False, kw_only=True)
class PendingCall:
    """A call that is being sampled."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...]
    answer: asyncio.Future[Exchange]
    started: float  # monotonic seconds
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that a wire format needs to write a reply."""

    session_id: str
    request: ChatRequest
    exchange: Exchange
    shown: ClientReply


class Record:
    """Finds the call that a request repeats."""

    def __init__(self) -> None:
        self.conversations = ConversationTree(compare_reasoning=False)
        self.exchanges: list[Exchange] = []
        self.pending: list[PendingCall] = []
        self._answered: dict[MessageNode, list[Exchange]] = {}  # by the last message of the request

    def recorded_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages of a request, known ones as they were recorded."""
        known = self.conversations.match(messages).node
        if known.depth and messages[known.depth - 1] is known.message:
            return messages  # `ConversationTree.read` took all of the prefix from the tree
        return [*known.messages(), *messages[known.depth :]]

    def find(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> PendingCall | Exchange | None:
        """Return the call with these recorded messages and tools, if there is one."""
        for exchange in self._exchanges_after(messages):
            if exchange.tools == tools:
                return exchange
        return next(
            (c for c in list(self.pending) if c.tools == tools and _are_same(c.messages, messages)), None
        )

    def add(self, call: PendingCall, reply: Reply, purpose: CallKind) -> Exchange:
        """Record the reply to a pending call. A call without a reply leaves no trace."""
        index = len(self.exchanges)
        known = self.conversations.match(call.messages).node
        request_node = self.conversations.extend(known, call.messages[known.depth :])
        exchange = Exchange(
            index=index,
            tools=call.tools,
            reply=reply,
            purpose=purpose,
            started=call.started,
            ended=clock.monotonic(),
            node=self.conversations.add_reply(request_node, reply.to_message(), index, purpose),
            retries=call.retries,
        )
        self.pending.remove(call)
        self.exchanges.append(exchange)
        self._answered.setdefault(request_node, []).append(exchange)
        return exchange

    def interrupted(self, messages: list[Message]) -> tuple[Exchange, ClientReply] | None:
        """Return the exchange whose interrupted reply these messages continue, and the rest of the reply.

        A client whose stream was cut sends the beginning of the reply as an assistant message, and then a
        user message that quotes where it ended.
        """
        if len(messages) < 3 or messages[-2]["role"] != "assistant" or messages[-1]["role"] != "user":
            return None
        begun, question = messages[-2]["content"], messages[-1]["content"]
        if not begun.strip() or messages[-2].get("tool_calls") or begun.strip()[-_QUOTED:] not in question:
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
