"""The token tree of a rollout inside the metrics of ATIF steps.

Each sampled node is the reply of one step. The step also holds the rendered nodes of its prompt that no
earlier step holds, so every token is written once. A prompt of new nodes only is in `prompt_token_ids`, as
ATIF defines it; of any other prompt, only what is new is written, in `extra.new_prompt_token_ids`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from hone.integrations.atif.schema import Metrics, TokenId, WrittenNode, WrittenRouting
from hone.types import Float32, Int32, Node, Routing, TokenTree

Json = dict[str, Any]
NEW_PROMPT = "new_prompt_token_ids"
_IDS = TypeAdapter(list[TokenId])
LOGPROBS = "logprobs_base64"  # float32, little-endian; where one is not finite, which JSON cannot write


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which nodes of a tree each reply holds."""

    main: Mapping[int, int]  # index of a turn -> its sampled node
    others: tuple[int, ...]  # sampled nodes of no turn: auxiliary calls, replies that nothing acted on
    prompts: Mapping[int, tuple[int, ...]]  # sampled node -> new nodes of its prompt
    rest: tuple[int, ...]  # nodes of no prompt


def place(tree: TokenTree, turns: Iterable[tuple[int, int | None]]) -> Placement:
    """Divide the nodes of a tree among its replies. `turns`: index and node of each turn, in order."""
    placed = {index for index, node in enumerate(tree.nodes) if node.sampled}
    free, main = set(placed), dict[int, int]()
    for turn, node in turns:
        if node in free and turn not in main:
            main[turn] = node
            free.remove(node)
    others = tuple(sorted(free))
    prompts: dict[int, tuple[int, ...]] = {}
    for reply in (*main.values(), *others):
        prompts[reply] = tuple(index for index in tree.path(reply)[:-1] if index not in placed)
        placed.update(prompts[reply])
    rest = tuple(index for index in range(len(tree.nodes)) if index not in placed)
    return Placement(main=main, others=others, prompts=prompts, rest=rest)


def to_metrics(tree: TokenTree, reply: int, new: Sequence[int]) -> Json:
    """Return the metrics of the step that holds the node `reply` and the nodes `new` of its prompt."""
    node, prompt = tree.nodes[reply], tree.path(reply)[:-1]
    ids = [token for index in new for token in tree.nodes[index].tokens.tolist()]
    whole = list(new) == prompt
    metrics: Json = {
        "prompt_tokens": sum(len(tree.nodes[index].tokens) for index in prompt),
        "completion_tokens": len(node.tokens),
        **({"prompt_token_ids": ids} if whole else {}),
        "completion_token_ids": node.tokens.tolist(),
    }
    extra: Json = {
        "nodes": [_shape(tree, index) for index in (*new, reply)],
        **({} if whole else {NEW_PROMPT: ids}),
    }
    _write_logprobs(node.logprobs, metrics, extra)
    return {**metrics, "extra": extra}


def of_metrics(metrics: Metrics) -> dict[int, Node]:
    """Return the nodes that `to_metrics` wrote. Raises KeyError, TypeError or ValueError for changed ones."""
    extra = metrics.extra or {}
    *prompt, reply = map(WrittenNode.model_validate, extra["nodes"])
    tokens = np.array(_IDS.validate_python(extra.get(NEW_PROMPT, metrics.prompt_token_ids)), np.int32)
    found, start = dict[int, Node](), 0
    for written in prompt:
        end = start + written.length
        found[written.index] = _node(written, tokens[start:end].copy())
        start = end
    if start != len(tokens):
        raise ValueError(f"a prompt has {len(tokens)} new token ids, but its nodes have {start}")
    completion = np.array(metrics.completion_token_ids or [], np.int32)
    found[reply.index] = _node(reply, completion, _read_logprobs(metrics.logprobs, extra))
    return found


def to_rest(tree: TokenTree, index: int) -> Json:
    """Return a node that no step holds, with its tokens."""
    return {**_shape(tree, index), "tokens": tree.nodes[index].tokens.tolist()}


def of_rest(data: Json) -> tuple[int, Node]:
    """Return the index and the node that `to_rest` wrote. Raises ValueError for a changed one."""
    written = WrittenNode.model_validate(data)
    return written.index, _node(written, np.array(written.tokens or [], np.int32))


def _shape(tree: TokenTree, index: int) -> Json:
    """Return all of a node but its tokens and log-probabilities."""
    node = tree.nodes[index]
    shape: Json = {
        "index": index,
        "parent": node.parent,
        "turn": node.turn,
        "sampled": node.sampled,
        "length": len(node.tokens),
    }
    if node.sampled:
        shape["version"] = node.version.tolist()
    if node.routing is not None:
        raw = base64.b64encode(np.ascontiguousarray(node.routing).tobytes()).decode()
        shape["routing"] = {
            "dtype": node.routing.dtype.name,
            "shape": list(node.routing.shape),
            "base64": raw,
        }
    return shape


def _node(written: WrittenNode, tokens: Int32, logprobs: Float32 | None = None) -> Node:
    if len(tokens) != written.length:
        raise ValueError(f"node {written.index} has {len(tokens)} token ids instead of {written.length}")
    return Node(
        parent=written.parent,
        tokens=tokens,
        sampled=written.sampled,
        logprobs=np.zeros(0, np.float32) if logprobs is None else logprobs,
        version=np.array(written.version, np.int32),
        turn=written.turn,
        routing=None if written.routing is None else _routing(written.routing),
    )


def _routing(written: WrittenRouting) -> Routing:
    flat: npt.NDArray[Any] = np.frombuffer(base64.b64decode(written.base64), written.dtype)
    return flat.reshape(written.shape).copy()


def _write_logprobs(logprobs: Float32, metrics: Json, extra: Json) -> None:
    if np.isfinite(logprobs).all():
        metrics["logprobs"] = logprobs.tolist()
    else:
        extra[LOGPROBS] = base64.b64encode(logprobs.astype("<f4").tobytes()).decode()


def _read_logprobs(logprobs: list[float] | None, extra: Json) -> Float32:
    if LOGPROBS in extra:
        return np.frombuffer(base64.b64decode(extra[LOGPROBS]), "<f4").astype(np.float32)
    return np.array(logprobs or [], np.float32)
