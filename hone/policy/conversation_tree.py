"""A trie of messages, in which a conversation finds its recorded replies again.

A node is a beginning of a conversation. Messages in the same form as last time are found by one comparison,
others by their key (`hone.policy.messages`). Each chat has a tree, and each session of the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hone.policy.messages import Key, call_ids, frozen, key_of, reasoning_of
from hone.policy.reply import CallKind
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
class MessageNode:
    """A beginning of a conversation: its last message, after those of `parent`."""

    parent: MessageNode | None
    message: Message
    depth: int  # messages down to here
    key: Key
    reasoning: str  # of an assistant message
    traits: Traits
    children: dict[Key, list[MessageNode]] = field(default_factory=dict[Key, "list[MessageNode]"])
    samples: list[int] = field(default_factory=list[int])  # the replies that said this, oldest first
    answered: bool = False  # a reply was sampled right after this message
    followers: set[CallKind] = field(default_factory=set[CallKind])  # of the replies below this reply
    form: Message | None = None  # the message in the form that it was given in last
    sample: int | None = None  # the one of `samples` that this form means
    recent_item: tuple[Any, MessageNode] | None = None  # a request's item read last, and where it leads

    def messages(self) -> list[Message]:
        """Return the messages down to here, as they were recorded."""
        return path_between(None, self)


def path_between(above: MessageNode | None, below: MessageNode) -> list[Message]:
    """Return the messages from below `above` (None: the root) down to `below`."""
    path: list[Message] = []
    node = below
    while node is not above and node.parent is not None:
        path.append(node.message)
        node = node.parent
    return path[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """The longest known beginning of a conversation."""

    node: MessageNode
    reply: MessageNode | None  # the last message of that beginning that was sampled
    sample: int | None  # which sample of it
    reasoning_dropped: bool  # the first unknown message is a known reply without its reasoning


@dataclass(slots=True)
class _Path:
    """The conversation that was matched last: most are matched again, a little longer."""

    forms: list[Message | None] = field(default_factory=list[Message | None])
    nodes: list[MessageNode] = field(default_factory=list[MessageNode])

    def keep_beginning(self, messages: Sequence[Message]) -> None:
        """Cut the path where `messages` differ from it."""
        length = min(len(self.forms), len(messages))
        if self.forms[:length] != list(messages[:length]):
            length = next(i for i in range(length) if self.forms[i] != messages[i])
        del self.forms[length:], self.nodes[length:]

    def add(self, node: MessageNode) -> None:
        self.forms.append(node.form)
        self.nodes.append(node)


class ConversationTree:
    """Every conversation that was asked or answered, and where its replies were sampled.

    Args:
        compare_reasoning: whether an assistant message with other reasoning is another message.
    """

    def __init__(self, *, compare_reasoning: bool = True) -> None:
        self._compare_reasoning = compare_reasoning
        self._roots: dict[str, MessageNode] = {}
        self._paths: dict[str, _Path] = {}
        self._sampled: dict[Key, list[tuple[MessageNode, int]]] = {}  # replies by what they say, oldest first
        self._calls: dict[str, int] = {}  # id of a tool call -> the sample that made it

    def match(self, messages: Sequence[Message], tools: str = "") -> PrefixMatch:
        """Follow `messages` as far as they are known. `tools` names the tools the model was shown."""
        path = self._paths.setdefault(tools, _Path())
        path.keep_beginning(messages)
        node = path.nodes[-1] if path.nodes else self._root(tools)
        dropped = False
        for message in messages[len(path.nodes) :]:
            child, dropped = self._find(node, message)
            if child is None:
                break
            node = child
            path.add(node)
        reply = next((node for node in reversed(path.nodes) if node.samples), None)
        return PrefixMatch(
            node=node, reply=reply, sample=reply.sample if reply else None, reasoning_dropped=dropped
        )

    def read(
        self, items: Sequence[Any], convert: Callable[[Any, int], list[Message]], opening: Sequence[Message]
    ) -> list[Message]:
        """Return `opening` and the messages that `items` of a request mean; known ones as they were recorded.

        An item in the form it was given in last is not converted again. Raises what `convert` raises.
        """
        messages = list(opening)
        node: MessageNode | None = self._root("")
        for message in opening:  # not by `match`, which would forget the path to the rest
            node = None if node is None else self._find(node, message)[0]
        for number, item in enumerate(items):
            if node is not None and node.recent_item is not None and node.recent_item[0] == item:
                end = node.recent_item[1]
                messages += path_between(node, end)
                node = end
                continue
            converted = convert(item, number)
            end = node
            for message in converted:
                end = None if end is None else self._find(end, message)[0]
            if node is not None and end is not None:
                converted = path_between(node, end)
                form = frozen(item)
                node.recent_item = None if form is None else (form, end)
            messages += converted
            node = end
        return messages

    def extend(self, node: MessageNode, messages: Sequence[Message]) -> MessageNode:
        """Return the node after `messages` have followed `node`."""
        for message in messages:
            found, _ = self._find(node, message)
            node = found or _add_child(node, message, key_of(message), self._meant_reasoning(node, message))
        return node

    def add_reply(self, node: MessageNode, reply: Message, sample: int, kind: CallKind) -> MessageNode:
        """Record that `sample` said `reply` right after `node`."""
        node.answered = True
        above: MessageNode | None = node
        while above is not None and not above.samples:
            above = above.parent
        if above is not None:
            above.followers.add(kind)
        key, reasoning = key_of(reply), reasoning_of(reply) or ""
        variants = node.children.get(key, ())
        if variants:
            self._paths.clear()  # a conversation that says this may now mean this reply
        said = next((variant for variant in variants if variant.reasoning == reasoning), None)
        said = said or _add_child(node, reply, key, reasoning)
        said.samples.append(sample)
        self._sampled.setdefault(key, []).append((said, sample))
        self._calls.update(dict.fromkeys(call_ids(reply), sample))
        return said

    def add_alias(self, node: MessageNode, message: Message) -> None:
        """Find `node` by `message` too: the form in which a client was shown a reply."""
        assert node.parent is not None
        named = node.parent.children.setdefault(key_of(message), [])
        if node not in named:
            named.append(node)

    def recorded(self, message: Message, before: Key, after_sample: int) -> tuple[MessageNode, int] | None:
        """Return the reply that an assistant message which moved repeats; None when no reply says this.

        Of several with the same text: the one whose tool calls have the same ids, else one that answered the
        same message (`before`), else the first that is younger than `after_sample`, else the latest.
        """
        reasoning = reasoning_of(message)
        found = [
            (node, sample)
            for node, sample in self._sampled.get(key_of(message), ())
            if reasoning is None or reasoning == node.reasoning
        ]
        if len(found) <= 1:
            return found[0] if found else None
        named = {self._calls.get(name) for name in call_ids(message)}
        return (
            next((item for item in found if item[1] in named), None)
            or next((item for item in found if item[0].parent and item[0].parent.key == before), None)
            or next((item for item in found if item[1] > after_sample), None)
            or found[-1]
        )

    def depths(self, message: Message) -> set[int]:
        """Return the depths at which replies that say this message stand."""
        return {node.depth for node, _ in self._sampled.get(key_of(message), ())}

    def _root(self, tools: str) -> MessageNode:
        if tools not in self._roots:
            key: Key = ("", "", "")
            root = MessageNode(parent=None, message={}, depth=0, key=key, reasoning="", traits=Traits())
            self._roots[tools] = root
        return self._roots[tools]

    def _find(self, node: MessageNode, message: Message) -> tuple[MessageNode | None, bool]:
        """Return the child that `message` means, and whether only its missing reasoning keeps it unknown."""
        variants = node.children.get(key_of(message))
        if not variants:
            return None, False
        given = reasoning_of(message) if message["role"] == "assistant" else ""
        sampled = [variant for variant in variants if variant.samples]
        named = {self._calls.get(name) for name in call_ids(message)}
        if sampled and (given is None or not self._compare_reasoning):
            found = next((v for v in sampled if named.intersection(v.samples)), None)
            found = found or max(sampled, key=lambda variant: variant.samples[-1])
        elif not self._compare_reasoning:
            found = variants[0]
        else:
            reasoning = self._meant_reasoning(node, message)
            found = next((variant for variant in variants if variant.reasoning == reasoning), None)
        if found is None:
            return None, given == ""
        sample = next((n for n in found.samples if n in named), None)
        found.form = frozen(message)
        found.sample = sample if sample is not None else (found.samples[-1] if found.samples else None)
        return found, False

    def _meant_reasoning(self, node: MessageNode, message: Message) -> str:
        """Return the reasoning of a message behind `node`: its own, else that of the reply it repeats."""
        reasoning = reasoning_of(message) if message["role"] == "assistant" else ""
        if reasoning is not None:
            return reasoning
        repeated = self.recorded(message, node.key, -1)
        return repeated[0].reasoning if repeated else ""


def _add_child(node: MessageNode, message: Message, key: Key, reasoning: str) -> MessageNode:
    child = MessageNode(
        parent=node,
        message=message,
        depth=node.depth + 1,
        key=key,
        reasoning=reasoning if key[0] == "assistant" else "",
        traits=node.traits.after(message, first=node.depth == 0, reasoning=reasoning),
    )
    node.children.setdefault(key, []).append(child)
    return child
