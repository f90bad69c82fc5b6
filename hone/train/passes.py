"""Which rows share a forward pass, and how it is computed: by predicted cost, the same for any order of rows.

off          rows packed side by side, each computed alone
mask         a prefix tree in one pass, each shared token computed once per pass
depth_first  a prefix tree segment by segment; its memory is that of the longest row, so no token is computed
             twice however small the budget is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from hone.train.forest import Branch, Forest, build_forest, depth_first_order, shared_prefix
from hone.train.settings import Tree

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Kind = Literal["off", "mask", "depth_first"]

# Seconds on one core of an Intel Xeon, forward and backward in float32: least squares over 52 passes of two
# models (192 x 3 and 512 x 4, hidden size x layers) with 16 to 2,500 tokens and 1 to 68 segments; predictions
# are within 25 % of the measured times. Only the ratios matter, and other devices use the same ones.
_LINEAR_FLOP = 1.1e-11  # floating-point operation of a matrix of weights
_ATTENTION_FLOP = 3.2e-11
_ELEMENT = 1.6e-7  # per token, layer and hidden dimension: norms, activations, residuals
_BLOCK = 3.4e-4  # per layer and attention kernel
_LAYER = 4.8e-3  # per layer, of a pass or of a segment on its own
_PARAMETER = 1.7e-9  # per parameter of the layers: adding a gradient
_DEPTH_FIRST_GAIN = 0.9  # predicted cost relative to other kinds below which depth first is chosen


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
    may_go_deep: bool = True,
) -> list[PlannedPass]:
    """Return passes over all branches, each of at most `budget_tokens` unique tokens.

    A longer branch is a pass by itself, and a depth-first pass keeps only one branch in memory, so it takes
    any number. `auto` takes the kind with the lowest predicted cost of the slowest of `parts`, among which
    `balance` divides the passes; `may_go_deep` false leaves depth first out of the choice.
    """
    if not branches:
        return []
    kinds: tuple[Kind, ...] = ("off", "mask", "depth_first") if may_go_deep else ("off", "mask")
    kinds = kinds if tree == "auto" else (tree,)
    total = sum(len(branch.tokens) for branch in branches)
    shares = {-(-total // (parts * n)) for n in (1, 2, 4)} if parts > 1 else set[int]()
    budgets = sorted({budget_tokens, *(share for share in shares if share < budget_tokens)}, reverse=True)
    plans = [_plan(branches, kind, budget, cost, parts) for kind in kinds for budget in budgets]

    def slowest(plan: list[PlannedPass]) -> float:
        seconds = max(sum(plan[i].cost for i in part) for part in balance(plan, parts))
        return seconds / _DEPTH_FIRST_GAIN if plan[0].kind == "depth_first" else seconds

    return min(plans, key=slowest)


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


def _plan(
    branches: Sequence[Branch], kind: Kind, budget: int, cost: CostModel, parts: int
) -> list[PlannedPass]:
    match kind:
        case "off":
            groups = _pack(branches, budget)
        case "mask":
            groups = _cut(branches, budget)
        case "depth_first":
            groups = _cut(branches, budget) if parts > 1 else [depth_first_order(branches)]
    planned: list[PlannedPass] = []
    for rows in groups:
        forest = build_forest([branches[i] for i in rows], share=kind != "off")
        planned.append(PlannedPass(rows, kind, forest, cost.predict(forest, kind)))
    return planned


def _pack(branches: Sequence[Branch], budget: int) -> list[list[int]]:
    """Return groups of at most `budget` tokens, by the first-fit decreasing rule of bin packing."""
    rank = {index: at for at, index in enumerate(depth_first_order(branches))}
    groups: list[list[int]] = []
    room: list[int] = []
    for index in sorted(rank, key=lambda i: (-len(branches[i].tokens), rank[i])):
        length = len(branches[index].tokens)
        at = next((g for g, left in enumerate(room) if left >= length), None)
        if at is None:
            groups.append([])
            room.append(budget)
            at = len(groups) - 1
        groups[at].append(index)
        room[at] -= length
    return groups


def _cut(branches: Sequence[Branch], budget: int) -> list[list[int]]:
    """Return neighbours in depth-first order with at most `budget` unique tokens together."""
    groups: list[list[int]] = []
    unique = 0
    for index in depth_first_order(branches):
        tokens = branches[index].tokens
        fresh = len(tokens) - shared_prefix(branches[groups[-1][-1]].tokens, tokens) if groups else 0
        if groups and unique + fresh <= budget:
            groups[-1].append(index)
            unique += fresh
        else:
            groups.append([index])
            unique = len(tokens)
    return groups
