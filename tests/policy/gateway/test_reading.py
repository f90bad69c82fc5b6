"""What is read of a body that begins like earlier ones is what is read of it alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.record import Record
from hone.policy.gateway.wire.body import BodyReader
from hone.policy.gateway.wire.memory import Memory

relaxed = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

TEXTS = st.sampled_from(
    ["", "a", "é\n", '"messages"', '"messages":[', "]", "},{", "\\", '\\"', "\u2028", "messages"]
)
ITEMS = st.one_of(
    TEXTS,
    st.integers(0, 2),
    st.booleans(),
    st.lists(TEXTS, max_size=2),
    st.dictionaries(TEXTS, st.one_of(TEXTS, st.lists(TEXTS, max_size=2)), max_size=2),
)
FIELDS = st.dictionaries(st.sampled_from(["model", "messages ", "x", "é"]), ITEMS, max_size=2)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "edit", "drop", "same", "head"]),
        ITEMS,
        st.integers(0, 9),
        st.sampled_from([None, None, None, "break", "twice", "comma", "missing"]),
    ),
    min_size=1,
    max_size=12,
)


def change(items: list[Any], head: dict[str, Any], operation: str, item: Any, number: int) -> None:
    if operation == "add":
        items.append(item)
    elif operation == "head":
        head["model"] = item
    elif items and operation == "edit":
        items[number % len(items)] = item
    elif items and operation == "drop":
        del items[number % len(items)]


def spoil(data: bytes, how: str | None, number: int) -> bytes:
    if how == "break":
        return data[: len(data) * number // 10]
    if how == "twice":
        return data[:-1] + b',"messages":[1]}'
    if how == "comma":
        return data.replace(b"]", b",]", 1)
    if how == "missing":
        return data.replace(b'"messages":', b'"massages":')
    return data


@relaxed
@given(
    steps=STEPS,
    head=FIELDS,
    tail=FIELDS,
    separators=st.sampled_from([(",", ":"), (" , ", " : "), ("\n,", ":")]),
)
def test_a_body_means_what_it_means_alone(steps, head, tail, separators):
    reader, items, head = BodyReader("messages"), list[Any](), dict(head)
    for operation, item, number, how in steps:
        change(items, head, operation, item, number)
        whole = json.dumps(
            {**head, "messages": items, **tail}, separators=separators, ensure_ascii=number < 5
        )
        data = spoil(whole.encode(), how, number)
        try:
            expected = from_json(data, allow_inf_nan=False)
        except ValueError:
            with pytest.raises(GatewayError, match="not JSON"):
                reader.read(data)
            continue
        if isinstance(expected, dict):
            read, alone = (json.dumps(body, sort_keys=True) for body in (reader.read(data), expected))
            assert read == alone  # which tells true from 1
        else:
            with pytest.raises(GatewayError):
                reader.read(data)


def test_a_long_history_is_parsed_once():
    reader = BodyReader("messages")
    items = [{"content": str(i)} for i in range(50)]
    first = reader.read(json.dumps({"model": "m", "messages": items, "stream": True}).encode())
    items += [{"content": "new"}]
    second = reader.read(json.dumps({"model": "m", "messages": items, "stream": False}).encode())
    assert second == {"model": "m", "messages": items, "stream": False}
    assert all(one is other for one, other in zip(first["messages"], second["messages"], strict=False))


@relaxed
@given(steps=STEPS)
def test_items_mean_what_they_mean_alone(steps):
    def convert(item: Any, _number: int) -> list[Any]:
        return [repr(item)] * (len(repr(item)) % 3)

    memory, items, others = Memory(), list[Any](), list[Any]()
    for operation, item, number, how in steps:
        line = items if how is None else others
        change(line, {}, operation, item, number)
        given_items = list(line)
        read = memory.read(given_items, convert, is_telling=lambda one: not isinstance(one, (int, bool)))
        assert read == [message for one in given_items for message in convert(one, 0)]


ROLES = st.sampled_from(["user", "assistant", "tool"])
TALKS = st.lists(
    st.lists(st.tuples(ROLES, st.sampled_from(["a", "b", " a\n"])), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)


@relaxed
@given(talks=TALKS)
def test_equal_conversations_have_one_place_and_others_have_others(talks):
    record, places = Record(), {}
    for talk in talks:
        messages = [{"role": role, "content": text} for role, text in talk]
        same = tuple((role, text.strip() if role == "assistant" else text) for role, text in talk)
        place, standing = record.place(messages)
        assert places.setdefault(same, place) is place
        assert place.messages() == standing
        assert [m["role"] for m in standing] == [role for role, _ in talk]
    assert len(set(map(id, places.values()))) == len(places)
