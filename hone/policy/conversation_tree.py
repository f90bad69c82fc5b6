"""A trie of messages that finds the recorded replies of a conversation.

Each node is a prefix of a conversation. A message in the same form as last time is found by one comparison,
any other by its key (`hone.policy.messages`). Each chat and each session of the gateway has its own tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import Raw

from hone.policy.messages import Key, call_ids, frozen, key_of, reasoning_of
from hone.policy.reply import CallKind
from hone.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a conversation so far on which a template may branch."""

    system: bool = False  # starts with a system message
    calls: bool = False  # has a reply with tool calls
    reasoning: bool = False  # has a reply with reasoning

    def after(self, message: Message, *, first: bool, reasoning: str) -> Traits:
        if message["role"] != "assistant":
            return Traits(system=True) if first and message["role"] == "system" else self
        return Traits(
            system=self.system,
            calls=self.calls or bool(message.get("tool_calls")),
            reasoning=self.reasoning or bool(reasoning),
        )


@dataclass(frozen=True, slots=True)
class RequestItem:
    """An item of a request, encoded as a client sent it, and the messages that it stands for."""

    encoded: Raw
    messages: tuple[Message, ...]  # as recorded
    end: MessageNode  # the prefix with these messages


@dataclass(slots=True, eq=False, kw_only=True)
class MessageNode:
    """A prefix of a conversation: its last message, after those of `parent`."""

    parent: MessageNode | None
    message: Message
    depth: int  # number of messages in the prefix
    key: Key
    reasoning: str  # empty unless this is an assistant message
    traits: Traits
    children: dict[Key, list[MessageNode]] = field(default_factory=dict[Key, "list[MessageNode]"])
    samples: list[int] = field(default_factory=list[int])  # replies with this message, oldest first
    answered: bool = False  # a reply was sampled right after this message
    followers: set[CallKind] = field(default_factory=set[CallKind])  # of the next replies below
    form: Message | None = None  # the form in which a client last sent the message
    sample: int | None = None  # the element of `samples` that `form` refers to
    recent_item: RequestItem | None = None  # the last item that a request had after this prefix

    def messages(self) -> list[Message]:
        """Return the messages of this prefix as recorded."""
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
    """The longest known prefix of a conversation."""

    node: MessageNode
    reply: MessageNode | None  # the last sampled message of the prefix
    sample: int | None  # the sample of `reply` that is meant
    reasoning_dropped: bool  # the first unknown message is a known reply without its reasoning


@dataclass(slots=True)
class _Path:
    """The conversation that was matched last: most are matched again, a little longer."""

    forms: list[Message | None] = field(default_factory=list[Message | None])
    nodes: list[MessageNode] = field(default_factory=list[MessageNode])

    def truncate(self, messages: Sequence[Message]) -> None:
        """Cut the path where `messages` differ from it."""
        length = min(len(self.forms), len(messages))
        if self.forms[:length] != list(messages[:length]):
            length = next(i for i in range(length) if self.forms[i] != messages[i])
        del self.forms[length:], self.nodes[length:]

    def add(self, node: MessageNode) -> None:
        self.forms.append(node.form)
        self.nodes.append(node)


class ConversationTree:
    """All recorded conversations and the samples of their replies.

    Args:
        compare_reasoning: whether assistant messages with different reasoning are different messages.
    """

    def __init__(self, *, compare_reasoning: bool = True) -> None:
        self._compare_reasoning = compare_reasoning
        self._roots: dict[str, MessageNode] = {}
        self._paths: dict[str, _Path] = {}
        self._sampled: dict[Key, list[tuple[MessageNode, int]]] = {}  # replies by key, oldest first
        self._calls: dict[str, int] = {}  # id of a tool call -> the sample that made it

    def match(self, messages: Sequence[Message], tools: str = "") -> PrefixMatch:
        """Return the longest known prefix of `messages`; `tools` is the name of the tools in the prompt."""
        path = self._paths.setdefault(tools, _Path())
        path.truncate(messages)
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
        self, items: Sequence[Raw], convert: Callable[[Raw, int], list[Message]], opening: Sequence[Message]
    ) -> list[Message]:
        """Return `opening` and the messages of a request's `items`; known messages as recorded.

        An item that is encoded as last time is not converted again. Propagates errors of `convert`.
        """
        messages = list(opening)
        node: MessageNode | None = self._root("")
        for message in opening:  # `match` would truncate the path
            node = None if node is None else self._find(node, message)[0]
        for number, item in enumerate(items):
            known = None if node is None else node.recent_item
            if known is not None and known.encoded == item:
                messages += known.messages
                node = known.end
                continue
            converted = convert(item, number)
            end = node
            for message in converted:
                end = None if end is None else self._find(end, message)[0]
            if node is not None and end is not None:
                converted = path_between(node, end)
                node.recent_item = RequestItem(item.copy(), tuple(converted), end)
            messages += converted
            node = end
        return messages

    def extend(self, node: MessageNode, messages: Sequence[Message]) -> MessageNode:
        """Add `messages` below `node`; return the last node."""
        for message in messages:
            found, _ = self._find(node, message)
            node = found or _add_child(
                node, message, key_of(message), self._resolved_reasoning(node, message)
            )
        return node

    def add_reply(self, node: MessageNode, reply: Message, sample: int, kind: CallKind) -> MessageNode:
        """Record `reply`, sampled as `sample`, below `node`; return its node."""
        node.answered = True
        above: MessageNode | None = node
        while above is not None and not above.samples:
            above = above.parent
        if above is not None:
            above.followers.add(kind)
        key, reasoning = key_of(reply), reasoning_of(reply) or ""
        variants = node.children.get(key, ())
        if variants:
            self._paths.clear()  # cached paths may now refer to this reply
        reply_node = next((variant for variant in variants if variant.reasoning == reasoning), None)
        reply_node = reply_node or _add_child(node, reply, key, reasoning)
        reply_node.samples.append(sample)
        self._sampled.setdefault(key, []).append((reply_node, sample))
        self._calls.update(dict.fromkeys(call_ids(reply), sample))
        return reply_node

    def add_alias(self, node: MessageNode, message: Message) -> None:
        """Let `message`, the form of a reply that a client received, also match `node`."""
        assert node.parent is not None
        named = node.parent.children.setdefault(key_of(message), [])
        if node not in named:
            named.append(node)

    def recorded(self, message: Message, before: Key, after_sample: int) -> tuple[MessageNode, int] | None:
        """Return the recorded reply that a moved assistant message repeats; None if there is none.

        Among several with the same text: the one with the same tool call ids, else one that answered the same
        message (`before`), else the first one sampled later than `after_sample`, else the latest.
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
        """Return the depths of the recorded replies equal to `message`."""
        return {node.depth for node, _ in self._sampled.get(key_of(message), ())}

    def _root(self, tools: str) -> MessageNode:
        if tools not in self._roots:
            key: Key = ("", "", "")
            root = MessageNode(parent=None, message={}, depth=0, key=key, reasoning="", traits=Traits())
            self._roots[tools] = root
        return self._roots[tools]

    def _find(self, node: MessageNode, message: Message) -> tuple[MessageNode | None, bool]:
        """Return the child that matches `message`, and whether only missing reasoning prevents a match."""
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
            reasoning = self._resolved_reasoning(node, message)
            found = next((variant for variant in variants if variant.reasoning == reasoning), None)
        if found is None:
            return None, given == ""
        sample = next((n for n in found.samples if n in named), None)
        form = frozen(message)
        # a recorded message that comes back is compared by identity: one comparison for a long conversation
        found.form = found.message if form is not None and message is found.message else form
        found.sample = sample if sample is not None else (found.samples[-1] if found.samples else None)
        return found, False

    def _resolved_reasoning(self, node: MessageNode, message: Message) -> str:
        """Return the reasoning of a message below `node`: its own, else that of the recorded reply."""
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
