"""Which rows share a forward pass, and how it is computed: by predicted cost, the same for any order of rows.

off          rows packed side by side, each computed alone
mask         a prefix tree in one pass, each shared token computed once per pass
depth_first  a prefix tree segment by segment; its memory is that of the longest row, so no token is computed
             twice however small the budget is
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from hone.train.forest import Branch, Forest, build_forest, depth_first_order, shared_prefix
from hone.train.settings import Tree

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Kind = Literal["off", "mask", "depth_first"]
_Grouping = Callable[[int], list[list[int]]]  # from a budget of unique tokens to groups of row indices

# Seconds on one core of an AMD EPYC, forward and backward in float32: least squares over 387 passes of four
# models (from 64 x 2 to 768 x 2, hidden size x layers) with 700 to 5,800 tokens and 1 to 11 segments; 90 % of
# the predictions are within 14 % of the measured time. Only the ratios matter, and other devices use the same
# ones.
_LINEAR_FLOP = 1.65e-11  # floating-point operation of a matrix of weights
_ATTENTION_FLOP = 2.1e-11
_ELEMENT = 1.0e-7  # per token, layer and hidden dimension: norms, activations, residuals
_BLOCK = 1.85e-4  # per layer and attention kernel
_LAYER = 4.9e-3  # per layer, of a pass or of a segment on its own
_PARAMETER = 1e-9  # per parameter of the layers: adding a gradient
_ROUND = 4e-8  # per parameter of the layers and round of ranks: gathered twice, gradients added up, by gloo
_DEPTH_FIRST_GAIN = 0.97  # predicted cost relative to other kinds below which depth first is chosen


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts the seconds of passes; see the constants of this module."""

    hidden: int
    layers: int
    attention_width: int  # of all queries of a token
    layer_parameters: int  # that one token is multiplied with, in one layer

    def predict(self, forest: Forest, kind: Kind) -> float:
        """Return the predicted seconds of a forward and a backward pass without the vocabulary."""
        segments, tokens = len(forest.starts), len(forest.tokens)
        inner = int((forest.subtree_ends > forest.ends).sum())  # segments with children
        deep = kind == "depth_first"
        per_pass = self.layers * (_LAYER + self.layer_parameters * _PARAMETER)
        blocks = 2 * segments if deep else segments + inner
        return (
            6 * self.layers * self.layer_parameters * tokens * _LINEAR_FLOP
            + 14 * self.layers * self.attention_width * forest.visible_pairs * _ATTENTION_FLOP
            + self.layers * self.hidden * tokens * _ELEMENT
            + self.layers * blocks * _BLOCK
            + (segments if deep else 1) * per_pass
        )


def cost_model(config: PretrainedConfig) -> CostModel:
    """Return the cost model of a decoder-only transformer, dense or with experts."""
    text: Any = cast("Any", config).get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    queries = text.num_attention_heads * head_dim
    keys = (getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head_dim
    experts = getattr(text, "num_experts_per_tok", None)
    inner = experts * text.moe_intermediate_size if experts else text.intermediate_size
    return CostModel(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        attention_width=queries,
        layer_parameters=text.hidden_size * (2 * queries + 2 * keys + 3 * inner),
    )


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """One pass over some rows."""

    rows: list[int]
    kind: Kind
    forest: Forest  # `predictors` is parallel to `rows`
    cost: float  # predicted seconds


def plan_passes(
    branches: Sequence[Branch],
    *,
    tree: Tree,
    budget_tokens: int,
    cost: CostModel,
    parts: int = 1,
    in_rounds: bool = False,
    may_go_deep: bool = True,
) -> list[PlannedPass]:
    """Return passes over all branches, each of at most `budget_tokens` unique tokens.

    A longer branch is a pass by itself, and a depth-first pass keeps only one branch in memory, so it takes
    any number. `auto` takes the kind with the lowest predicted cost of the slowest of `parts`, among which
    `balance` divides the passes, or `rounds` if they go through them `in_rounds`; depth first, whose number
    of forward passes differs between parts, is then no choice, nor is it if `may_go_deep` is false.
    """
    if not branches:
        return []
    deep: tuple[Kind, ...] = ("depth_first",) if may_go_deep and not in_rounds else ()
    kinds: tuple[Kind, ...] = ("off", "mask", *deep) if tree == "auto" else (tree,)
    plans = [plan for kind in kinds for plan in _plans(branches, kind, budget_tokens, cost, parts)]

    def slowest(plan: list[PlannedPass]) -> float:
        if in_rounds:
            costs = [each.cost for each in plan]
            longest = [costs[index] for index, *_ in rounds(costs, parts) if index is not None]
            seconds = sum(longest) + len(longest) * cost.layers * cost.layer_parameters * _ROUND
        else:
            seconds = max(sum(plan[i].cost for i in part) for part in balance(plan, parts))
        return seconds / _DEPTH_FIRST_GAIN if plan[0].kind == "depth_first" else seconds

    return min(plans, key=slowest)


def rounds(costs: Sequence[float], parts: int) -> list[list[int | None]]:
    """Return, per round, the pass of each part, the costliest first; None: nothing is left for that part.

    Every pass of ranks gathers weights from all of them, so they go through their passes together, and a
    round takes as long as its longest pass. Passes of similar cost share a round, which gives the least
    possible sum of the rounds' longest passes. Example: costs 5, 1, 4 and 2 parts give [[0, 2], [1, None]].
    """
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    filled: list[int | None] = [*order, *[None] * (-len(order) % parts)]
    return [filled[start : start + parts] for start in range(0, len(filled), parts)]


class _Costed(Protocol):
    @property
    def cost(self) -> float: ...


def balance(passes: Sequence[_Costed], parts: int) -> list[list[int]]:
    """Return the indices of the passes of each of `parts` workers, so that none has much more to do.

    The costliest pass goes first, each to the worker with the least work (Graham's LPT rule, at most 4/3 of
    the best possible).
    """
    work: list[list[int]] = [[] for _ in range(parts)]
    seconds = [0.0] * parts
    for index in sorted(range(len(passes)), key=lambda i: (-passes[i].cost, i)):
        worker = min(range(parts), key=lambda w: (seconds[w], w))
        work[worker].append(index)
        seconds[worker] += passes[index].cost
    return work


def _plans(
    branches: Sequence[Branch], kind: Kind, budget: int, cost: CostModel, parts: int
) -> list[list[PlannedPass]]:
    """Return plans of one kind to choose from: one, or some of different numbers of passes for `parts`."""
    group = _grouping(branches, kind, parts)
    plans: list[list[PlannedPass]] = []
    for tokens in _budgets(group, budget, parts):
        planned: list[PlannedPass] = []
        for rows in group(tokens):
            forest = build_forest([branches[i] for i in rows], share=kind != "off")
            planned.append(PlannedPass(rows, kind, forest, cost.predict(forest, kind)))
        plans.append(planned)
    return plans


def _budgets(group: _Grouping, budget: int, parts: int) -> list[int]:
    """Return `budget` and, for several parts, lower ones for as many passes of similar size for each."""
    if parts == 1:
        return [budget]
    fewest = -(-len(group(budget)) // parts) * parts
    budgets = [budget]
    for count in (fewest, 2 * fewest):
        low, high = 1, budget  # the lowest budget of at most `count` passes is in [low, high]
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(group(middle)) <= count else (middle + 1, high)
        budgets.append(high)
    return sorted(set(budgets), reverse=True)


def _grouping(branches: Sequence[Branch], kind: Kind, parts: int) -> _Grouping:
    order = depth_first_order(branches)
    if kind == "depth_first" and parts == 1:
        return lambda _: [order]
    lengths = [len(branches[i].tokens) for i in order]
    if kind == "off":
        return lambda budget: _pack(order, lengths, budget)
    pairs = itertools.pairwise(branches[i].tokens for i in order)
    fresh = [n - shared_prefix(*pair) for n, pair in zip(lengths[1:], pairs, strict=True)]
    return lambda budget: _cut(order, lengths, [lengths[0], *fresh], budget)


def _pack(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return groups of at most `budget` tokens, by the first-fit decreasing rule of bin packing."""
    groups: list[list[int]] = []
    room: list[int] = []
    for index, length in sorted(zip(order, lengths, strict=True), key=lambda pair: -pair[1]):
        at = next((g for g, left in enumerate(room) if left >= length), None)
        if at is None:
            groups.append([])
            room.append(budget)
            at = len(groups) - 1
        groups[at].append(index)
        room[at] -= length
    return groups


def _cut(order: Sequence[int], lengths: Sequence[int], fresh: Sequence[int], budget: int) -> list[list[int]]:
    """Return neighbours in `order` with at most `budget` unique tokens together; `fresh`: not of the last."""
    groups: list[list[int]] = []
    unique = 0
    for index, length, new in zip(order, lengths, fresh, strict=True):
        if groups and unique + new <= budget:
            groups[-1].append(index)
            unique += new
        else:
            groups.append([index])
            unique = length
    return groups
