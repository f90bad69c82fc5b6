"""The policy as one module whose output is what a loss needs: log-probabilities and entropies."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hone.train.activations import checkpointed_layers, offloaded_activations
from hone.train.attention import (
    AttendFunction,
    attention_over,
    pass_arguments,
    require_forest_attention,
    use_forest_attention,
)
from hone.train.errors import TrainError
from hone.train.forest import Branch, build_forest
from hone.train.routing import replayed_routing
from hone.train.settings import MemorySettings
from hone.train.vocabulary import score

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE = ((5, 6, 7, 8, 9, 10), (5, 6, 7, 11, 12), (5, 13, 14, 15))  # a tree with two forks


class PolicyModel(nn.Module):
    """A causal language model that runs passes over forests.

    Everything that touches a weight happens inside `forward`, so that FSDP may shard this module as the root.
    The model computes in evaluation mode: dropout would change the ratio against the sampled policy.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        logit_tokens: int,
        memory: MemorySettings | None = None,
    ) -> None:
        """`temperature` divides the logits; see `PassSettings.logit_tokens`. Raises TrainError for a model
        whose attention does not go through transformers' registry."""
        super().__init__()
        use_forest_attention(model)
        self.model = model.eval()
        self.temperature = temperature
        self.logit_tokens = logit_tokens
        self._memory = memory or MemorySettings()

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        predictors: Tensor,
        targets: Tensor,
        attend: AttendFunction,
        routing: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of `targets` and the entropies (no gradient), float32 [N] each.

        `tokens` and `position_ids` are int64 [1, U], one pass; `predictors`, int64 [N], are the indices into
        [U] of the positions that predict `targets`, int64 [N]. `routing`: see `decode`.
        """
        hidden = self.decode(tokens, position_ids, attend, routing)
        return self.score(hidden.index_select(0, predictors), targets)

    def plain_logprobs(self, input_ids: Tensor) -> Tensor:
        """Return `plain_logprobs` of the model; a method, for FSDP to gather the weights around it."""
        return plain_logprobs(self.model, input_ids, self.temperature)

    def next_logprobs(self, input_ids: Tensor) -> Tensor:
        """Return the log-probability [V] of every token after `input_ids` [1, L], at temperature 1."""
        logits = self.model(input_ids=input_ids, use_cache=False).logits[0, -1]
        return torch.log_softmax(logits.float(), dim=-1)

    def decode(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        attend: AttendFunction,
        routing: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states [U, C] of one pass, after the final norm.

        `routing` [U, layers, k] are the experts to use at each position, see `replayed_routing`.
        """
        require_forest_attention(self.model)
        decoder = cast("Any", self.model.get_decoder())
        with ExitStack() as stack:
            if torch.is_grad_enabled() and self._memory.offload_activations:
                stack.enter_context(offloaded_activations(self.model))
            if torch.is_grad_enabled() and self._memory.activation_checkpointing:
                stack.enter_context(
                    checkpointed_layers(self.model, lambda: replayed_routing(self.model, routing))
                )
            stack.enter_context(replayed_routing(self.model, routing))
            arguments = pass_arguments(attend, tokens.device)
            out = decoder(input_ids=tokens, position_ids=position_ids, **arguments)
        return out.last_hidden_state[0]

    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of `targets` [N] and the entropies [N] from hidden states [N, C]."""
        head = cast("nn.Module", self.model.get_output_embeddings())
        return score(head, hidden, targets, temperature=self.temperature, logit_tokens=self.logit_tokens)


def plain_logprobs(model: PreTrainedModel, input_ids: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of every token but the first, [B, L] -> [B, L - 1], from full logits."""
    logits = model(input_ids=input_ids, use_cache=False).logits[:, :-1]
    every = torch.log_softmax(logits.float() / temperature, dim=-1)
    return every.gather(-1, input_ids[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def require_exact_passes(policy: PolicyModel, device: torch.device, dtype: torch.dtype) -> None:
    """Raise TrainError if passes over a forest do not give the log-probabilities of the model itself.

    Compares a small tree with one plain forward pass per branch, and counts the layers whose attention was
    ours. Finds logit scaling and soft caps, attention outside the registry, and layers that mix neighbouring
    tokens in another way, such as linear attention.

    `device` and `dtype` are those of the computation; ranks that share a model all call this.
    """
    model = policy.model
    vocabulary = int(model.config.get_text_config().vocab_size)
    rows = [np.array(row, np.int32) % vocabulary for row in _PROBE]
    branches = [Branch(row, np.arange(1, len(row), dtype=np.int64)) for row in rows]
    forest = build_forest(branches, share=True)
    attend = _Counted(attention_over(forest, device))
    targets = torch.from_numpy(np.concatenate([row[1:] for row in rows]).astype(np.int64)).to(device)
    ours, _ = policy(
        torch.from_numpy(forest.tokens)[None].to(device),
        torch.from_numpy(forest.position_ids)[None].to(device),
        torch.from_numpy(np.concatenate(forest.predictors)).to(device),
        targets,
        attend,
    )
    plain: list[Tensor] = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(device)
        plain.append(policy.plain_logprobs(ids)[0])
    worst = float((torch.cat(plain) - ours).abs().max())
    layers = int(model.config.get_text_config().num_hidden_layers)
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-3
    if not worst <= tolerance or attend.calls != layers:
        raise TrainError(
            f"{type(model).__name__} cannot be trained: its log-probabilities differ by up to {worst:.2g} "
            f"from those over a prefix tree, and {attend.calls} of {layers} layers use plain attention. "
            "Choose a model with plain causal attention in every layer, without scaled or capped logits"
        )


class _Counted:
    """Counts the calls of an attention function."""

    def __init__(self, attend: AttendFunction) -> None:
        self.calls = 0
        self._attend = attend

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None, layer: int
    ) -> Tensor:
        self.calls += 1
        return self._attend(query, key, value, scale=scale, window=window, layer=layer)
