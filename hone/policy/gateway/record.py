"""What was said in a session: a tree of messages, in which every request finds its place.

A request's messages are a path from the root. Two requests at one place with the same tools are one call
asked twice. The rule that must not break: a message of the assistant that a client hands back is the reply
that was sampled there, word for word, whatever the client's formatting did to it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hone.policy.gateway.asked import Shown, shown_message
from hone.policy.gateway.wire.memory import is_beginning
from hone.policy.messages import key_of
from hone.policy.reply import Purpose, Reply, ToolSpec
from hone.types import Message


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A call that was answered: what was asked, and the reply."""

    index: int  # in the session, in the order of the answers
    tools: tuple[ToolSpec, ...]
    reply: Reply
    purpose: Purpose
    started: float  # monotonic seconds
    ended: float
    place: Place = field(repr=False)  # where the reply stands in the record
    retries: int = 0  # how often the client asked again
    followed_by: Sequence[Message] = ()  # of the main line: what its next request said, for the observer

    @property
    def messages(self) -> list[Message]:
        """What was asked, in Hone's own form; replies stand in it as they were sampled."""
        assert self.place.parent is not None
        return self.place.parent.messages()


@dataclass(slots=True, eq=False)
class Ask:
    """A call that was asked, and how often; its answer may still be on the way."""

    place: Place
    tools: tuple[ToolSpec, ...]
    answer: asyncio.Future[Exchange]
    retries: int = 0  # until the answer was there

    def again(self) -> None:
        if self.answer.done():
            self.answer.result().retries += 1
        else:
            self.retries += 1


@dataclass(slots=True, eq=False)
class Place:
    """A point of the record: the messages on the way here."""

    message: Message
    parent: Place | None
    shown: Shown | None = None  # of a reply: what its client saw of it
    exchange: Exchange | None = None  # of a reply: the call that it answers
    asks: list[Ask] = field(default_factory=list[Ask])  # the calls for a reply that follows
    children: list[Place] = field(default_factory=list["Place"])

    def messages(self) -> list[Message]:
        return [place.message for place in self._path()][::-1]

    def _path(self) -> Iterator[Place]:
        place = self
        while place.parent is not None:
            yield place
            place = place.parent

    def add(self, message: Message) -> Place:
        child = Place(message, self)
        self.children.append(child)
        return child

    def asked(self, tools: tuple[ToolSpec, ...]) -> Ask | None:
        """The call that was asked here with these tools."""
        return next((ask for ask in self.asks if ask.tools == tools), None)


class Record:
    """Finds and makes places. What a client hands back of its history costs next to nothing."""

    def __init__(self) -> None:
        self.root = Place({}, None)
        self._walks: list[_Walk] = []  # the latest last

    def place(self, messages: list[Message]) -> tuple[Place, list[Message]]:
        """Where these messages lead, new ones being added, and the messages as they stand there."""
        walk = self._known(messages)
        place, standing = walk.place, list(walk.standing)
        for message in messages[len(standing) :]:
            place = place.add(message)
            standing.append(message)
        kept = [other for other in self._walks if other is not walk.start]
        self._walks = [*kept[-_WALKS + 1 :], _Walk(messages, place, standing)]
        return place, standing

    def _known(self, messages: list[Message]) -> _Walk:
        """How far these messages are known. `given` is not filled in."""
        start = max(
            (walk for walk in self._walks if is_beginning(walk.given, messages)),
            key=lambda walk: len(walk.given),
            default=None,
        )
        place, standing = (
            (self.root, list[Message]()) if start is None else (start.place, list(start.standing))
        )
        for message in messages[len(standing) :]:
            following = next((child for child in place.children if is_same(child, message)), None)
            if following is None:
                break
            place = following
            standing.append(place.message)
        return _Walk([], place, standing, start)

    def forget(self, ask: Ask) -> None:
        """A call without an answer leaves nothing behind; the messages that only it had go too."""
        place = ask.place
        place.asks.remove(ask)
        while place.parent is not None and not (place.asks or place.children or place.exchange):
            place.parent.children.remove(place)
            self._walks = [walk for walk in self._walks if walk.place is not place]
            place = place.parent

    def interrupted(self, messages: list[Message]) -> tuple[Exchange, Shown] | None:
        """The call whose reply these messages want the rest of, and that rest.

        So asks a client that had begun to read a reply: the conversation ends with a beginning of the reply,
        as the assistant's, and a user's message that quotes where it ended.
        """
        if len(messages) < 3 or messages[-2]["role"] != "assistant" or messages[-1]["role"] != "user":
            return None
        begun, request = messages[-2]["content"], messages[-1]["content"]
        if not begun.strip() or messages[-2].get("tool_calls") or begun.strip()[-_QUOTED:] not in request:
            return None
        walk = self._known(messages[:-2])
        if len(walk.standing) < len(messages) - 2:
            return None
        for reply in walk.place.children:
            if reply.exchange and reply.shown and _goes_on(reply.shown, begun):
                rest = dataclasses.replace(
                    reply.shown, content=reply.shown.content[len(begun) :], reasoning=None
                )
                return reply.exchange, rest
        return None


@dataclass(frozen=True, slots=True)
class _Walk:
    given: list[Message]
    place: Place
    standing: list[Message]  # as they stand on the way to it
    start: _Walk | None = None  # the walk that this one goes on from


_WALKS = 8  # conversations that may alternate, such as those of sub-agents
_QUOTED = 200  # characters of a broken reply that a client quotes at least, where there are so many


def _goes_on(shown: Shown, begun: str) -> bool:
    """Whether the reply begins like this, and there is more of it."""
    return shown.content.startswith(begun) and (len(shown.content) > len(begun) or bool(shown.calls))


def is_same(place: Place, message: Message) -> bool:
    """Whether `message` is what stands at `place`, in whatever form its client gave it."""
    if place.message == message:
        return True
    if message["role"] != "assistant" or place.message["role"] != "assistant":
        return False
    said = [place.message]
    if place.shown is not None:
        said.append(shown_message(place.shown))
    return key_of(message) in map(key_of, said)
