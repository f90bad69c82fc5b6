"""The token tree of a rollout: each token with the engine's, the trainer's and the algorithm's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hone.rollout.store import load
from hone.train.errors import TrainError
from hone.train.samples import trained_branches, turn_nodes
from hone.train.token_records import TokenRows, read_token_rows, token_file
from hone.types import Node, TokenTree, Trajectory
from hone.view.advantages import group_advantages
from hone.view.files import stored_directory
from hone.view.reader import RunReader
from hone.view.records import NodeTokens, RolloutRow, TokenPage
from hone.view.rollouts import find_row, rows_read
from hone.view.vocabulary import Vocabulary, find_vocabulary

_TRAINED = "trained"
Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What training made of the tokens of one node; NaN where nothing is known."""

    logprobs: Numbers
    entropies: Numbers
    advantages: Numbers
    weights: Numbers


def token_page(reader: RunReader, directory: str) -> TokenPage:
    """Return the token tree of a stored rollout.

    Raises NotFound when the run has no such rollout, StoreError when it is damaged.
    """
    trajectory = load(stored_directory(reader, directory))
    row, tree = find_row(reader, directory), trajectory.tree
    vocabulary = find_vocabulary(reader)
    rows, source = _trained_rows(reader, row)
    columns = _columns(tree, rows, _node_advantages(reader, trajectory, row), _is_trained(row))
    branches = list(tree.branches())
    first = _first_branches(branches)
    nodes = tuple(
        _node(index, node, columns[index], first.get(index, 0), _why(node, columns[index], row), vocabulary)
        for index, node in enumerate(tree.nodes)
    )
    return TokenPage(
        rollout=directory,
        nodes=nodes,
        branches=tuple(tuple(branch) for branch in branches),
        tokens=sum(len(node.tokens) for node in tree.nodes),
        sampled=tree.sampled_tokens,
        trained=sum(int((each.weights > 0).sum()) for each in columns),
        tokenizer=None if vocabulary is None else str(vocabulary.folder),
        source=source,
    )


def _is_trained(row: RolloutRow | None) -> bool:
    return row is not None and row.disposition == _TRAINED


def _trained_rows(reader: RunReader, row: RolloutRow | None) -> tuple[TokenRows | None, str]:
    """Return what the trainer recorded of a rollout's tokens, and the file in words; None, "": nothing."""
    if row is None or row.step is None:
        return None, ""
    rows = read_token_rows(reader.directory, row.step, row.rollout_id)
    if rows is None:
        return None, ""
    file = token_file(reader.directory, row.step).relative_to(reader.directory)
    updates = int(rows.update.max(initial=0))
    when = "before an update" if updates == 0 else f"after {updates} of the step's updates"
    return rows, f"{file}: first pass over each token, {when}"


def _node_advantages(reader: RunReader, trajectory: Trajectory, row: RolloutRow | None) -> dict[int, float]:
    """Return node -> advantage, as the run's algorithm computes them; {} where it cannot be told."""
    if row is None:
        return {}
    group = rows_read(reader, lambda other: other.group_id == row.group_id)
    found = group_advantages(reader, group)
    if found is None or row.rollout_id not in found.advantages:
        return {}
    own = found.advantages[row.rollout_id]
    try:
        of_turns = turn_nodes(trajectory, found.turn_advantages.get(row.rollout_id, {}))
    except TrainError:
        of_turns = {}
    return {i: of_turns.get(i, own) for i, node in enumerate(trajectory.tree.nodes) if node.sampled}


def _columns(
    tree: TokenTree, rows: TokenRows | None, advantages: Mapping[int, float], trained: bool
) -> list[_Columns]:
    """Return the columns of every node: recorded ones, or the advantages and weights that follow by rule."""
    made = [_unknown(node, advantages.get(i)) for i, node in enumerate(tree.nodes)]
    for number, (branch, fresh) in enumerate(trained_branches(tree)):
        own = None if rows is None else rows.of_branch(number)
        begin = 0
        for index in branch:
            node, columns = tree.nodes[index], made[index]
            end = begin + len(node.tokens)
            if index in fresh:
                columns.weights[:] = 1.0 if trained else 0.0
                if own is not None:
                    _fill(columns, own, begin, end)
            begin = end
    return made


def _fill(columns: _Columns, rows: TokenRows, begin: int, end: int) -> None:
    """Copy the rows at positions [begin, end) of a branch into the columns of its node."""
    at = (rows.position >= begin) & (rows.position < end)
    if not at.any():
        return
    to = rows.position[at] - begin
    columns.logprobs[to] = rows.logprob[at]
    columns.entropies[to] = rows.entropy[at]
    columns.advantages[to] = rows.advantage[at]
    columns.weights[:] = 0.0
    columns.weights[to] = rows.weight[at]


def _unknown(node: Node, advantage: float | None) -> _Columns:
    size = len(node.tokens)
    known = node.sampled and advantage is not None
    return _Columns(
        logprobs=np.full(size, np.nan),
        entropies=np.full(size, np.nan),
        advantages=np.full(size, advantage if known else np.nan),
        weights=np.zeros(size),
    )


def _first_branches(branches: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return node -> index of the first branch through it."""
    first: dict[int, int] = {}
    for number, branch in enumerate(branches):
        for node in branch:
            first.setdefault(node, number)
    return first


def _why(node: Node, columns: _Columns, row: RolloutRow | None) -> str:
    """Return why the tokens of a node are trained, or are not."""
    if not node.sampled:
        return "rendered, not sampled"
    if row is None or row.disposition is None:
        return "in a rollout that no step has consumed"
    if row.disposition == "masked":
        return f"masked: the recipe trains no rollout that ended as {row.outcome}"
    if row.disposition == "dropped":
        return f"in a dropped rollout: {row.reason}"
    if not (columns.weights > 0).any():
        return "its weight is 0: a correction masks it"
    known = columns.advantages[~np.isnan(columns.advantages)]
    if len(known) and not known.any():
        return "its advantage is 0, so it has no gradient"
    return f"trained by step {row.step}"


def _node(
    index: int, node: Node, columns: _Columns, branch: int, why: str, vocabulary: Vocabulary | None
) -> NodeTokens:
    ids = tuple(node.tokens.tolist())
    shown = None if vocabulary is None else vocabulary.show(ids)
    nothing: tuple[None, ...] = (None,) * len(ids)
    return NodeTokens(
        node=index,
        parent=node.parent,
        turn=node.turn,
        sampled=node.sampled,
        branch=branch,
        ids=ids,
        texts=None if shown is None else tuple(text for text, _ in shown),
        bytes_hex=None if shown is None else tuple(raw for _, raw in shown),
        logprobs=_known(node.logprobs) if node.sampled else nothing,
        versions=tuple(node.version.tolist()) if node.sampled else nothing,
        trainer_logprobs=_known(columns.logprobs),
        entropies=_known(columns.entropies),
        advantages=_known(columns.advantages),
        weights=tuple(columns.weights.tolist()),
        why=why,
    )


def _known(values: Numbers) -> tuple[float | None, ...]:
    """Return the values, None for those that are not finite."""
    finite = np.isfinite(values)
    if finite.all():
        return tuple(values.tolist())
    if not finite.any():
        return (None,) * len(values)
    return tuple(value if known else None for value, known in zip(values.tolist(), finite, strict=True))
