"""The steps of a rollout: each reply once, with what came of it, whatever messages an agent records."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings

from hone.integrations.conversation import Step, conversation
from hone.types import Turn
from tests.examples import examples
from tests.rollout.test_store import example, trajectories

SYSTEM, TASK = {"role": "system", "content": "S"}, {"role": "user", "content": "T"}


def turn(index: int, reply: str, observation: str = "", action: str | None = "ls") -> Turn:
    return Turn(
        index=index, node=None, reply=reply, action=action, exit_code=0, observation=observation, seconds=1.0
    )


def reply(text: str, *calls: tuple[str, str, Any], **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return message


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def steps(*messages: dict[str, Any], turns: tuple[Turn, ...]) -> list[Step]:
    return conversation(example(messages=messages, turns=turns))


def shape(found: list[Step]) -> list[tuple[str, int | None, list[str]]]:
    """Return role, turn and results of each step."""
    return [
        (step.role, None if step.turn is None else step.turn.index, [each.text for each in step.results])
        for step in found
    ]


@settings(max_examples=examples(120), deadline=None)
@given(trajectory=trajectories())
def test_every_turn_has_exactly_one_step(trajectory: Any) -> None:
    found = conversation(trajectory)
    shown = [step.turn for step in found if step.turn is not None]
    assert sorted(map(id, shown)) == sorted(map(id, trajectory.turns))
    json.dumps([[step.text, step.reasoning, str(step.calls)] for step in found]).encode()


def test_native_calls_and_their_answers_belong_to_the_reply() -> None:
    calls = (("c1", "view", '{"path": "a"}'), ("c2", "bash", {"command": "ls"}))
    found = steps(
        SYSTEM,
        TASK,
        reply("I look.", *calls, reasoning_content="hm"),
        result("c2", "two"),
        result("c1", "one"),
        {"role": "user", "content": "one"},
        turns=(turn(0, "I look.", "two\none"),),
    )
    assert shape(found) == [
        ("system", None, []), ("user", None, []), ("assistant", 0, ["two", "one"]), ("user", None, []),
    ]  # fmt: skip
    assert [(each.id, each.name, each.arguments) for each in found[2].calls] == [
        ("c1", "view", {"path": "a"}),
        ("c2", "bash", {"command": "ls"}),
    ]
    assert [each.call_id for each in found[2].results] == ["c2", "c1"]
    assert found[2].reasoning == "hm"


def test_commands_written_as_text_become_calls() -> None:
    debugger = json.dumps({"name": "view", "arguments": {"path": "a"}})
    found = steps(
        TASK,
        reply("one"),
        {"role": "user", "content": "out"},
        reply("two"),
        turns=(turn(0, "one", "out"), turn(1, "two", "submitted", debugger)),
    )
    assert shape(found) == [("user", None, []), ("assistant", 0, ["out"]), ("assistant", 1, ["submitted"])]
    assert [(each.id, each.name, each.arguments) for step in found for each in step.calls] == [
        ("call_0", "bash", {"command": "ls"}),
        ("call_1", "view", {"path": "a"}),
    ]
    assert [each.call_id for step in found for each in step.results] == ["call_0", "call_1"]


def test_reply_that_no_message_holds_stands_before_its_answer() -> None:
    error = {"role": "user", "content": "No tool call found."}
    found = steps(
        TASK,
        reply("", ("c1", "bash", '{"command": "ls"}')),
        result("c1", "a.py"),
        error,
        error,
        reply("", ("c2", "bash", '{"command": "cat"}')),
        turns=(
            turn(0, "", "a.py"),
            turn(1, "Just words.", error["content"], None),
            turn(2, "More words.", error["content"], None),
            turn(3, ""),
        ),
    )
    assert shape(found) == [
        ("user", None, []),
        ("assistant", 0, ["a.py"]),
        ("assistant", 1, [error["content"]]),
        ("assistant", 2, [error["content"]]),
        ("assistant", 3, []),
    ]


def test_history_that_begins_again_is_copied_up_to_the_next_new_reply() -> None:
    first = reply("", ("c1", "bash", '{"command": "ls"}'))
    second = reply("", ("c2", "bash", '{"command": "cat"}'))
    summary = {"role": "user", "content": "so far"}
    third = reply("", ("c3", "bash", '{"command": "rm"}'))
    found = steps(
        SYSTEM,
        TASK,
        first,
        result("c1", "a"),
        second,
        *(SYSTEM, summary, second, result("c2", "b"), third),
        result("c3", "c"),
        turns=(turn(0, "", "a"), turn(1, "", "b"), turn(2, "", "c")),
    )
    assert [(step.role, step.copied) for step in found[4:]] == [
        ("system", True), ("user", False), ("assistant", True), ("assistant", False),
    ]  # fmt: skip
    assert shape(found)[2:4] == [("assistant", 0, ["a"]), ("assistant", 1, ["b"])]
    assert shape(found)[-1] == ("assistant", 2, ["c"])


def test_turns_without_messages_are_steps() -> None:
    assert shape(steps(turns=(turn(0, "a", "x"), turn(1, "b")))) == [
        ("assistant", 0, ["x"]),
        ("assistant", 1, []),
    ]


def test_reply_without_a_turn_is_a_step() -> None:
    assert shape(steps(TASK, reply("cut off"), turns=())) == [("user", None, []), ("assistant", None, [])]


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    calls = [("c1", "bash", "not json"), ("c2", "bash", "[1]"), ("c3", "bash", '{"x": NaN}')]
    (step,) = steps(reply("", *calls), turns=())
    assert [each.arguments for each in step.calls] == [
        {"arguments": "not json"}, {"arguments": [1]}, {"arguments": '{"x": NaN}'},
    ]  # fmt: skip


def test_content_of_parts_is_shown_as_text() -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {}}]
    (step,) = steps({"role": "user", "content": parts}, turns=())
    assert step.text == "see [image_url]"


def test_lone_surrogates_are_shown_as_question_marks() -> None:
    found = steps(
        reply("a\udcff", ("c\udcff", "n\udcff", '{"x": "\\udcff"}')), result("c\udcff", "\udcff"), turns=()
    )
    assert (found[0].text, found[0].results[0].text) == ("a?", "?")
    assert (found[0].calls[0].id, found[0].calls[0].name, found[0].calls[0].arguments) == (
        "c?",
        "n?",
        {"x": "?"},
    )
