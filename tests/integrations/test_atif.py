"""ATIF: every trajectory comes back bit for bit, in linear size; foreign files open, damaged ones do not."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.integrations.atif import AtifError, from_atif, to_atif
from hone.outcomes import Outcome
from hone.rollout.store import Store
from hone.train.samples import tree_samples
from hone.types import Call, Node, Sampler, TokenTree, Trajectory, Turn
from tests.examples import examples
from tests.rollout.test_store import assert_same, example, trajectories

FOREIGN: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s1",
    "agent": {
        "name": "terminus-2",
        "version": "2.0",
        "model_name": "m",
        "tool_definitions": [{"type": "function", "function": {"name": "bash"}}],
    },
    "steps": [
        {"step_id": 1, "timestamp": "2026-01-01T00:00:00Z", "source": "user", "message": "Fix it."},
        {
            "step_id": 2,
            "source": "agent",
            "message": [{"type": "text", "text": "I look."}],
            "reasoning_content": "hm",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}},
                {"tool_call_id": "c2", "function_name": "view", "arguments": {"path": "a"}},
            ],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.py"}, {"content": "more"}]},
            "metrics": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.1, -0.2],
            },
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": "Done.",
            "metrics": {
                "prompt_token_ids": [1, 2, 3, 4, 5, 6],
                "completion_token_ids": [7],
                "logprobs": [-0.5],
            },
        },
        {"step_id": 4, "source": "agent", "message": "I look.", "is_copied_context": True},
    ],
}


def through_json(trajectory: Trajectory) -> Trajectory:
    """Return what comes back from a file that any JSON parser and UTF-8 can hold."""
    text = json.dumps(to_atif(trajectory), allow_nan=False)
    return from_atif(json.loads(json.dumps(json.loads(text), ensure_ascii=False).encode()))


def node(parent: int | None, tokens: list[int], *, sampled: bool = False, turn: int = 0) -> Node:
    size = len(tokens) if sampled else 0
    return Node(
        parent=parent,
        tokens=np.array(tokens, np.int32),
        sampled=sampled,
        logprobs=np.full(size, -0.25, np.float32),
        version=np.full(size, 3, np.int32),
        turn=turn,
    )


def turn(index: int, at: int | None, reply: str = "ls") -> Turn:
    return Turn(index=index, node=at, reply=reply, action="ls", exit_code=0, observation="x", seconds=1.0)


def call(index: int, at: int, purpose: str = "main", fork: str | None = None) -> Call:
    return Call(
        index=index, node=at, purpose=purpose, fork=fork, prompt_tokens=9, sampled_tokens=2, seconds=0.5
    )


def forked() -> Trajectory:
    """Two turns, an auxiliary call after the first, and a history that begins again before the third turn."""
    tree = TokenTree(
        [
            node(None, [1, 2, 3]),
            node(0, [4, 5], sampled=True),
            node(0, [6]),
            node(2, [7], sampled=True),  # a title
            node(1, [8, 9]),
            node(4, [10], sampled=True, turn=1),
            node(None, [1, 2, 11]),
            node(6, [12], sampled=True, turn=2),
            node(6, [13]),  # rendered for a reply that never came
        ]
    )
    system, task = {"role": "system", "content": "S"}, {"role": "user", "content": "T"}
    replies = [{"role": "assistant", "content": text} for text in ("one", "two", "three")]
    answer = {"role": "user", "content": "x"}
    summary = {"role": "user", "content": "so far"}
    return example(
        tree=tree,
        turns=(turn(0, 1, "one"), turn(1, 5, "two"), turn(2, 7, "three")),
        messages=(system, task, replies[0], answer, replies[1], answer, system, summary, *replies[1:]),
        calls=(call(0, 1), call(1, 3, "side", "side"), call(2, 5), call(3, 7, fork="compacted")),
        sampler=Sampler(agent="blackbox", engine="vllm", trainable=True),
    )


@settings(max_examples=examples(120), deadline=None)
@given(trajectory=trajectories())
def test_every_trajectory_comes_back_bit_for_bit(trajectory: Trajectory) -> None:
    assert_same(through_json(trajectory), trajectory)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_comes_back(outcome: Outcome) -> None:
    reward = None if outcome.value.endswith("error") or outcome is Outcome.CANCELLED else -1.0
    made = example(outcome=outcome, reward=reward, turns=(), messages=(), error="no\udcffthing")
    assert_same(through_json(made), made)


def test_escape_character_of_lone_surrogates_comes_back() -> None:
    texts = ("\ufffd", "\ufffddcff", "\udcff", "\ud83d\ude00", "😀", "\\ufffd0041", "\ufffd\ufffd0041")
    made = example(patch="".join(texts), notes={text: text for text in texts})
    assert_same(through_json(made), made)


def test_logprobs_that_are_not_finite_come_back() -> None:
    odd = np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32)
    odd[0:1].view(np.uint32)[0] |= 1  # the payload of a nan, too
    sampled = dataclasses.replace(node(0, [1, 2, 3, 4], sampled=True), logprobs=odd)
    made = example(tree=TokenTree([node(None, [1]), sampled]))
    assert "logprobs" not in to_atif(made)["steps"][1]["metrics"]
    assert_same(through_json(made), made)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_experts_of_a_mixture_come_back_with_their_type(dtype: type) -> None:
    experts = np.arange(-1, 17, dtype=dtype).reshape(3, 3, 2)  # 3 tokens, 3 layers, 2 experts
    prompt = dataclasses.replace(node(None, [1, 2, 3]), routing=experts)
    reply = dataclasses.replace(node(0, [4, 5, 6], sampled=True), routing=experts[::-1])
    made = example(tree=TokenTree([prompt, reply, dataclasses.replace(prompt, routing=None)]))
    assert_same(through_json(made), made)


def test_number_that_json_cannot_write_is_refused() -> None:
    with pytest.raises(AtifError, match="holds a number that is not finite"):
        to_atif(example(notes={"ratio": float("inf")}))


def test_turns_are_steps_with_call_observation_and_tokens() -> None:
    made = forked()
    steps = to_atif(made)["steps"]
    assert [(step["source"], step.get("is_copied_context")) for step in steps] == [
        ("system", None), ("user", None), ("agent", None), ("agent", None),
        ("system", True), ("user", None), ("agent", True), ("agent", None),
    ]  # fmt: skip
    first, second, third = steps[2], steps[3], steps[7]
    assert first["tool_calls"] == [
        {"tool_call_id": "call_0", "function_name": "bash", "arguments": {"command": "ls"}}
    ]
    assert first["observation"]["results"][0] == {"source_call_id": "call_0", "content": "x"}
    assert first["metrics"]["prompt_token_ids"] == [1, 2, 3]
    assert (first["metrics"]["completion_token_ids"], first["metrics"]["logprobs"]) == ([4, 5], [-0.25] * 2)
    assert "prompt_token_ids" not in second["metrics"]
    assert second["metrics"]["extra"]["new_prompt_token_ids"] == [8, 9]
    assert second["metrics"]["extra"]["nodes"][-1]["version"] == [3]
    assert second["metrics"]["prompt_tokens"] == 7
    assert (third["metrics"]["prompt_token_ids"], third["extra"]["fork"]) == ([1, 2, 11], "compacted")
    assert first["timestamp"] == "1970-01-01T00:01:40Z"
    assert second["timestamp"] == "1970-01-01T00:01:41Z"


def test_auxiliary_call_is_a_subagent_that_its_turn_refers_to() -> None:
    document = to_atif(forked())
    (other,) = document["subagent_trajectories"]
    (reference,) = document["steps"][2]["observation"]["results"][1]["subagent_trajectory_ref"]
    assert reference["trajectory_id"] == other["trajectory_id"]
    assert other["steps"][0]["metrics"]["completion_token_ids"] == [7]
    assert other["steps"][0]["metrics"]["extra"]["new_prompt_token_ids"] == [6]
    assert other["steps"][0]["extra"] == {"purpose": "side", "fork": "side", "seconds": 0.5}


@pytest.mark.parametrize("at", [(1, 1), (0, 1), (9, 1), (None, 1), (-1, 1)])
def test_turns_that_name_no_reply_of_their_own_hold_no_tokens(at: tuple[int | None, ...]) -> None:
    tree = TokenTree([node(None, [1, 2]), node(0, [3, 4], sampled=True)])
    made = example(tree=tree, turns=tuple(turn(index, each) for index, each in enumerate(at)), messages=())
    holding = [step["extra"]["turn"] for step in to_atif(made)["steps"] if "metrics" in step]
    assert holding == [at.index(1)]
    assert_same(through_json(made), made)


def test_forked_trajectory_comes_back_with_every_node() -> None:
    made = forked()
    assert [each["index"] for each in to_atif(made)["extra"]["hone"]["nodes"]] == [8]
    assert_same(through_json(made), made)


def test_every_token_id_is_written_once() -> None:
    document = json.dumps(to_atif(long_conversation(50)))
    for step in range(50):
        assert document.count(f"{1_000_000 + step}") == 1


def test_size_grows_linearly_with_the_conversation() -> None:
    short, long = (len(json.dumps(to_atif(long_conversation(turns)))) for turns in (100, 400))
    assert long < 4.2 * short


def long_conversation(turns: int) -> Trajectory:
    """Return a conversation whose turns each add two tokens to the prompt and one reply."""
    tree, made, messages = TokenTree(), list[Turn](), list[dict[str, str]]()
    parent = None
    for index in range(turns):
        parent = tree.append(node(parent, [1_000_000 + index, 7], turn=index))
        parent = tree.append(node(parent, [2_000_000 + index], sampled=True, turn=index))
        made.append(turn(index, parent, f"reply {index}"))
        messages += [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": f"reply {index}"},
        ]
    return example(tree=tree, turns=tuple(made), messages=tuple(messages))


def test_rollout_without_messages_is_one_step_that_says_why() -> None:
    made = example(
        tree=TokenTree(), turns=(), messages=(), outcome=Outcome.SANDBOX_ERROR, reward=None, error="full"
    )
    assert to_atif(made)["steps"] == [{"step_id": 1, "source": "system", "message": "full"}]
    assert_same(through_json(made), made)


def test_scripted_turn_is_no_call_of_a_model() -> None:
    made = example(tree=TokenTree(), turns=(turn(0, None),), messages=())
    (step,) = to_atif(made)["steps"]
    assert (step["llm_call_count"], step.get("metrics")) == (0, None)


def test_foreign_file_opens_with_its_trainable_tokens() -> None:
    read = from_atif(FOREIGN)
    assert (read.outcome, read.reward, read.verdict) == (Outcome.GRADER_ERROR, None, None)
    assert "terminus-2 2.0 wrote this rollout" in (read.error or "")
    assert [message["role"] for message in read.messages] == [
        "user", "assistant", "tool", "user", "assistant", "assistant",
    ]  # fmt: skip
    assert read.messages[1]["content"] == "I look."
    assert read.messages[1]["reasoning_content"] == "hm"
    assert [(each.reply, each.node, each.action) for each in read.turns] == [
        ("I look.", 1, 'bash: ls\nview {"path": "a"}'),
        ("Done.", 3, None),
    ]
    assert read.turns[0].observation == "a.py\nmore"
    assert read.tree.tokens(3).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert read.sampler == Sampler(agent="terminus-2", engine="external", trainable=True)
    assert (read.started_at, read.tools) == (1767225600.0, ({"name": "bash"},))
    assert read.notes["atif"]["schema_version"] == "ATIF-v1.6"
    samples = tree_samples(read.tree, rollout_id="r", group_id="g", advantage=1.0)
    assert sum(int((sample.weight > 0).sum()) for sample in samples) == 3
    assert_same(through_json(read), read)


@pytest.mark.parametrize("missing", ["prompt_token_ids", "completion_token_ids", "logprobs"])
def test_foreign_reply_without_exact_tokens_is_not_trainable(missing: str) -> None:
    document = copy.deepcopy(FOREIGN)
    for step in document["steps"]:
        step.get("metrics", {}).pop(missing, None)
    read = from_atif(document)
    assert (len(read.tree.nodes), read.sampler.trainable) == (0, False)
    assert [each.node for each in read.turns] == [None, None]


def test_aggregated_metrics_of_several_calls_are_not_one_reply() -> None:
    document = copy.deepcopy(FOREIGN)
    document["steps"][1]["llm_call_count"] = 2
    assert [each.node for each in from_atif(document).turns] == [None, 1]


def test_foreign_tokens_without_their_logprobs_are_refused() -> None:
    document = copy.deepcopy(FOREIGN)
    document["steps"][1]["metrics"]["logprobs"].pop()
    with pytest.raises(AtifError, match="step 2 has 2 `completion_token_ids` but 1 `logprobs`"):
        from_atif(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"schema_version": "ATIF-v9"},
            "is 'ATIF-v9', but Hone reads ATIF-v1.0 to ATIF-v1.8",
        ),
        ({"schema_version": None}, "`schema_version` is None"),
        ({"steps": []}, "`steps` is wrong"),
        ({"agent": {"name": "a"}}, "`agent.version` is wrong"),
        ({"steps": [{"source": "robot", "message": ""}]}, r"`steps\.0\.source` is wrong"),
        ({"steps": [{"source": "user", "timestamp": "now", "message": ""}]}, "'now' is not ISO 8601"),
    ],
)
def test_unreadable_document_is_one_sentence(change: dict[str, Any], said: str) -> None:
    with pytest.raises(AtifError, match=said) as raised:
        from_atif({**FOREIGN, **change})
    assert "\n" not in str(raised.value)


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, *path, key)


@settings(max_examples=examples(300), deadline=None)
@given(
    place=st.sampled_from([*places(json.loads(json.dumps(to_atif(forked()))))]),
    junk=st.sampled_from([None, -1, 0.5, 2**40, "x", [], {}, [None], ["x"], [2**40], {"a": 1}, True]),
)
def test_document_that_was_changed_anywhere_is_read_or_refused(place: tuple[Any, ...], junk: Any) -> None:
    document = json.loads(json.dumps(to_atif(forked())))
    holder = functools.reduce(lambda inner, key: inner[key], place[:-1], document)
    holder[place[-1]] = junk
    with contextlib.suppress(AtifError), tempfile.TemporaryDirectory() as root:
        Store(Path(root)).save(from_atif(document), group=0, index=0)


@pytest.mark.parametrize("data", [None, [], "ATIF-v1.8", 3])
def test_json_that_is_no_document_is_refused(data: Any) -> None:
    with pytest.raises(AtifError, match="`schema_version` is None"):
        from_atif(data)


def damage(document: dict[str, Any], kind: str) -> None:
    hone, metrics = document["extra"]["hone"], document["steps"][2]["metrics"]
    if kind == "token":
        metrics["completion_token_ids"].pop()
    elif kind == "prompt":
        metrics["prompt_token_ids"].append(1)
    elif kind == "step":
        del document["steps"][2]
    elif kind == "format":
        hone["format"] = "hone-atif-2"
    elif kind == "record":
        del hone["trajectory"]["outcome"]
    elif kind == "nodes":
        del metrics["extra"]["nodes"]


@pytest.mark.parametrize("kind", ["token", "prompt", "step", "format", "record", "nodes"])
def test_changed_file_of_hone_is_refused(kind: str) -> None:
    document = to_atif(forked())
    damage(document, kind)
    with pytest.raises(AtifError, match=r"`extra\.hone` does not fit the rest of the document") as raised:
        from_atif(document)
    assert "\n" not in str(raised.value)


def test_file_of_hone_without_its_extra_opens_as_a_foreign_one() -> None:
    document = to_atif(forked(), model_name="m")
    del document["extra"]
    read = from_atif(document)
    assert read.outcome is Outcome.GRADER_ERROR
    assert [each.node is not None for each in read.turns] == [True, False, True]  # whole prompts only
    assert read.notes["atif"]["model_name"] == "m"
