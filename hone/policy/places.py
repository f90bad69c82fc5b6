"""What was said so far, by its messages: a trie, so that a conversation finds its recorded replies again.

A place is a beginning of a conversation. Messages that come in the same form as last time are found by one
comparison of lists, any other by its key (`hone.policy.messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hone.policy.messages import Key, call_ids, frozen, key_of, reasoning_of
from hone.policy.reply import Purpose
from hone.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a conversation has held so far; a template may render later messages by it."""

    system: bool = False  # it begins with a system message
    calls: bool = False  # a reply with tool calls
    reasoning: bool = False  # a reply with reasoning

    def after(self, message: Message, *, first: bool, reasoning: str) -> Traits:
        if message["role"] != "assistant":
            return Traits(system=True) if first and message["role"] == "system" else self
        return Traits(
            system=self.system,
            calls=self.calls or bool(message.get("tool_calls")),
            reasoning=self.reasoning or bool(reasoning),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Place:
    """A beginning of a conversation: its last message, after those of `parent`."""

    parent: Place | None
    depth: int  # messages down to here
    key: Key
    reasoning: str  # of an assistant's message
    traits: Traits
    children: dict[Key, list[Place]] = field(default_factory=dict[Key, "list[Place]"])
    nodes: list[int] = field(default_factory=list[int])  # sampled nodes of the tree that say this message
    answered: bool = False  # a reply was sampled right after this message
    followers: set[Purpose] = field(default_factory=set[Purpose])  # of the replies below this reply
    form: Message | None = None  # the message as it was given last
    node: int | None = None  # the sampled node that this form means


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How far a conversation is known: its longest known beginning."""

    place: Place
    reply: Place | None  # the last message of that beginning that was sampled
    node: int | None  # its node
    dropped: bool  # the first unknown message is a known reply without its reasoning


class _Line:
    """The conversation that was followed last: most are followed again, a little longer."""

    def __init__(self) -> None:
        self.forms: list[Message | None] = []
        self.places: list[Place] = []
        self.replies: list[tuple[Place | None, int | None]] = []  # the last sampled reply down to each place

    def same(self, messages: Sequence[Message]) -> int:
        """How many messages are given in the same form again."""
        length = min(len(self.forms), len(messages))
        if self.forms[:length] == list(messages[:length]):
            return length
        return next(i for i in range(length) if self.forms[i] != messages[i])

    def cut(self, length: int) -> None:
        for kept in (self.forms, self.places, self.replies):
            del kept[length:]

    def add(self, place: Place, reply: Place | None, node: int | None) -> None:
        self.forms.append(place.form)
        self.places.append(place)
        self.replies.append((reply, node))


class Places:
    """Every conversation of a chat that was asked or answered, and where its replies were sampled."""

    def __init__(self) -> None:
        self._roots: dict[str, Place] = {}
        self._lines: dict[str, _Line] = {}
        self._sampled: dict[Key, list[tuple[Place, int]]] = {}  # replies by what they say, oldest first
        self._calls: dict[str, int] = {}  # id of a tool call -> the node that made it

    def walk(self, tools: str, messages: Sequence[Message]) -> Walk:
        """Follow `messages` as far as they are known. `tools` names the tools the model was shown."""
        line = self._lines.setdefault(tools, _Line())
        at = line.same(messages)
        line.cut(at)
        place = line.places[-1] if at else self._root(tools)
        reply, node = line.replies[-1] if at else (None, None)
        dropped = False
        for message in messages[at:]:
            found, dropped = self._find(place, message)
            if found is None:
                break
            place = found
            if place.nodes:
                reply, node = place, place.node
            line.add(place, reply, node)
        return Walk(place=place, reply=reply, node=node, dropped=dropped)

    def extend(self, place: Place, messages: Sequence[Message]) -> Place:
        """The place after `messages` have followed `place`."""
        for message in messages:
            found, _ = self._find(place, message)
            place = found or _child(place, message, key_of(message), self._meant(place, message))
        return place

    def answer(self, place: Place, reply: Message, node: int, purpose: Purpose) -> Place:
        """Node `node` says `reply` right after `place`."""
        place.answered = True
        above: Place | None = place
        while above is not None and not above.nodes:
            above = above.parent
        if above is not None:
            above.followers.add(purpose)
        key, reasoning = key_of(reply), reasoning_of(reply) or ""
        variants = place.children.get(key, ())
        if variants:
            self._lines.clear()  # a conversation that says this may now mean this reply
        said = next((variant for variant in variants if variant.reasoning == reasoning), None)
        said = said or _child(place, reply, key, reasoning)
        said.nodes.append(node)
        self._sampled.setdefault(key, []).append((said, node))
        self._calls.update(dict.fromkeys(call_ids(reply), node))
        return said

    def recorded(self, message: Message, before: Key, after_node: int) -> tuple[Place, int] | None:
        """The reply that an assistant message which moved repeats; None when no reply says this.

        Of several with the same text: the one whose tool calls have the same ids, else one that answered the
        same message (`before`), else the first that is younger than `after_node`, else the latest.
        """
        reasoning = reasoning_of(message)
        found = [
            (place, node)
            for place, node in self._sampled.get(key_of(message), ())
            if reasoning is None or reasoning == place.reasoning
        ]
        if len(found) <= 1:
            return found[0] if found else None
        named = {self._calls.get(name) for name in call_ids(message)}
        return (
            next((item for item in found if item[1] in named), None)
            or next((item for item in found if item[0].parent and item[0].parent.key == before), None)
            or next((item for item in found if item[1] > after_node), None)
            or found[-1]
        )

    def depths(self, message: Message) -> set[int]:
        """Where replies that say this message stand: how many messages there are down to each."""
        return {place.depth for place, _ in self._sampled.get(key_of(message), ())}

    def _root(self, tools: str) -> Place:
        if tools not in self._roots:
            self._roots[tools] = Place(parent=None, depth=0, key=("", "", ""), reasoning="", traits=Traits())
        return self._roots[tools]

    def _find(self, place: Place, message: Message) -> tuple[Place | None, bool]:
        """The known child that `message` means, and whether only its reasoning keeps it from being known."""
        variants = place.children.get(key_of(message))
        if not variants:
            return None, False
        given = reasoning_of(message) if message["role"] == "assistant" else ""
        sampled = [variant for variant in variants if variant.nodes]
        named = {self._calls.get(name) for name in call_ids(message)}
        if given is None and sampled:
            found = next((v for v in sampled if named.intersection(v.nodes)), None)
            found = found or max(sampled, key=lambda variant: variant.nodes[-1])
        else:
            reasoning = self._meant(place, message)
            found = next((variant for variant in variants if variant.reasoning == reasoning), None)
        if found is None:
            return None, given == ""
        node = next((n for n in found.nodes if n in named), None)
        found.form = frozen(message)
        found.node = node if node is not None else (found.nodes[-1] if found.nodes else None)
        return found, False

    def _meant(self, place: Place, message: Message) -> str:
        """The reasoning that a message behind `place` means: its own, else that of the reply it repeats."""
        reasoning = reasoning_of(message) if message["role"] == "assistant" else ""
        if reasoning is not None:
            return reasoning
        repeated = self.recorded(message, place.key, -1)
        return repeated[0].reasoning if repeated else ""


def _child(place: Place, message: Message, key: Key, reasoning: str) -> Place:
    child = Place(
        parent=place,
        depth=place.depth + 1,
        key=key,
        reasoning=reasoning if key[0] == "assistant" else "",
        traits=place.traits.after(message, first=place.depth == 0, reasoning=reasoning),
    )
    place.children.setdefault(key, []).append(child)
    return child
