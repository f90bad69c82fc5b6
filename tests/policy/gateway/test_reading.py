"""A request's items mean the same with a history that is known as alone."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from hone.policy.conversation_tree import ConversationTree

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))

TEXTS = st.sampled_from(["", "a", "é\n", " a", "messages"])
ITEMS = st.one_of(TEXTS, st.integers(0, 2), st.booleans(), st.lists(TEXTS, max_size=2))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "edit", "drop", "same"]),
        ITEMS,
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def change(items: list[Any], operation: str, item: Any, number: int) -> None:
    if operation == "add":
        items.append(item)
    elif items and operation == "edit":
        items[number % len(items)] = item
    elif items and operation == "drop":
        del items[number % len(items)]


def convert(encoded: Raw, _number: int) -> list[dict[str, str]]:
    """Return no, one or two messages for an item."""
    text = bytes(encoded).decode()
    return [{"role": "user", "content": text}] * (len(text) % 3)


@relaxed
@given(steps=STEPS)
def test_items_read_together_equal_items_read_alone(steps):
    tree, main, side = ConversationTree(), list[Any](), list[Any]()
    for operation, item, number, on_side in steps:
        items = side if on_side else main
        change(items, operation, item, number)
        encoded = [Raw(json.dumps(one).encode()) for one in items]
        messages = tree.read(encoded, convert, [{"role": "system", "content": "s"}])
        assert messages[1:] == [message for one in encoded for message in convert(one, 0)]
        known = tree.match(messages).node
        tree.extend(known, messages[known.depth :])


ROLES = st.sampled_from(["user", "assistant", "tool"])
TALKS = st.lists(
    st.lists(st.tuples(ROLES, st.sampled_from(["a", "b", " a\n"])), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)


@relaxed
@given(talks=TALKS)
def test_equal_conversations_share_one_node(talks):
    tree, nodes = ConversationTree(compare_reasoning=False), {}
    for talk in talks:
        messages = [{"role": role, "content": text} for role, text in talk]
        same = tuple((role, text.strip() if role == "assistant" else text) for role, text in talk)
        known = tree.match(messages).node
        node = tree.extend(known, messages[known.depth :])
        assert nodes.setdefault(same, node) is node
        assert [message["role"] for message in node.messages()] == [role for role, _ in talk]
    assert len(set(map(id, nodes.values()))) == len(nodes)
