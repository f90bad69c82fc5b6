"""Engine calls of a trajectory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.integrations.traces import engine_calls
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.types import Node, TokenTree, Trajectory, Turn


def node(parent: int | None, tokens: list[int], *, sampled: bool) -> Node:
    count = len(tokens) if sampled else 0
    return Node(
        parent=parent,
        tokens=np.array(tokens, np.int32),
        sampled=sampled,
        logprobs=np.full(count, -0.5, np.float32),
        version=np.full(count, 3, np.int32),
        turn=0,
    )


def trajectory(nodes: list[Node], outcome: Outcome = Outcome.RESOLVED) -> Trajectory:
    return Trajectory(
        task_id="t",
        rollout_id="r",
        group_id="g",
        tree=TokenTree(nodes),
        turns=(),
        messages=(),
        patch="",
        outcome=outcome,
        reward=OUTCOME_RULES[outcome].reward,
    )


FORKED = [
    node(None, [1, 2], sampled=False),
    node(0, [3], sampled=True),
    node(1, [4], sampled=False),
    node(2, [5, 6], sampled=True),
    node(1, [7], sampled=False),
    node(4, [8], sampled=True),
]


def test_each_sampled_node_is_one_call_with_its_exact_prompt() -> None:
    turn = Turn(index=0, node=3, reply="hi", action=None, exit_code=None, observation="", seconds=0.0)
    calls = engine_calls(replace(trajectory(FORKED), turns=(turn,)), masked=False)
    assert [(c["prompt_token_ids"], c["completion_token_ids"]) for c in calls] == [
        ([1, 2], [3]),
        ([1, 2, 3, 4], [5, 6]),
        ([1, 2, 3, 7], [8]),
    ]
    assert calls[1]["loss_mask"] == [0, 0, 0, 0, 1, 1]
    assert calls[1]["per_token_logps"] == [-0.5, -0.5]
    assert [c["node_id"] for c in calls] == ["r/1", "r/3", "r/5"]
    assert [c["response"]["choices"][0]["message"]["content"] for c in calls] == ["", "hi", ""]


def test_masked_rollout_trains_no_token() -> None:
    calls = engine_calls(trajectory(FORKED, Outcome.TIME_LIMIT), masked=True)
    assert len(calls) == 3
    assert not any(sum(call["loss_mask"]) for call in calls)


@pytest.mark.parametrize(
    "outcome", [o for o, rule in OUTCOME_RULES.items() if rule.fault is Fault.INFRASTRUCTURE]
)
def test_infrastructure_fault_has_no_calls(outcome: Outcome) -> None:
    assert engine_calls(trajectory(FORKED, outcome), masked=False) == []


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(0, index - 1)) if index else None
        tokens = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
        nodes.append(node(parent, tokens, sampled=index > 0 and draw(st.booleans())))
    return nodes


@given(trees())
def test_every_sampled_token_is_trained_exactly_once(nodes: list[Node]) -> None:
    calls = engine_calls(trajectory(nodes), masked=False)
    assert sum(sum(call["loss_mask"]) for call in calls) == trajectory(nodes).tree.sampled_tokens
    for call in calls:
        whole = len(call["prompt_token_ids"]) + len(call["completion_token_ids"])
        assert len(call["loss_mask"]) == whole
        assert len(call["per_token_logps"]) == sum(call["loss_mask"])
