"""Log-probabilities of chosen tokens under the trainer's weights.

Only positions with weight are projected onto the vocabulary. Invariant: the result is
log_softmax(logits / temperature) at the chosen token, the same number that the engine reports.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hone.train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def plain_logprobs(model: PreTrainedModel, input_ids: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of every token but the first, [B, L] -> [B, L - 1], from full logits."""
    logits = model(input_ids=input_ids, use_cache=False).logits[:, :-1]
    every = torch.log_softmax(logits.float() / temperature, dim=-1)
    return every.gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def token_logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,
    positions: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    logit_tokens: int,
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of `targets` [N] and the entropies [N] (no gradient) of their positions.

    `input_ids` is int64 [B, L], padded on the right: with causal attention, padding cannot reach a real
    position, so no mask is built. `positions` [N] index the flattened [B * L] hidden states; the position
    before a token predicts it. At most `logit_tokens` rows of logits exist at a time.
    """
    hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    chosen = hidden.flatten(0, 1).index_select(0, positions)
    head = cast("nn.Module", model.get_output_embeddings())
    if len(targets) <= logit_tokens:
        return _project(head, chosen, targets, temperature)
    parts: list[tuple[Tensor, Tensor]] = [
        cast("Any", checkpoint(_project, head, rows, ids, temperature, use_reentrant=False))
        for rows, ids in zip(chosen.split(logit_tokens), targets.split(logit_tokens), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def require_plain_head(model: PreTrainedModel) -> None:
    """Raise TrainError when the model changes its logits after the projection (scaling, soft caps)."""
    probe = torch.arange(8, device=model.device)[None] % int(model.config.get_text_config().vocab_size)
    positions = torch.arange(7, device=model.device)
    with torch.no_grad():
        plain = plain_logprobs(model, probe, 1.0)[0]
        ours, _ = token_logprobs(model, probe, positions, probe[0, 1:], temperature=1.0, logit_tokens=8)
    if not torch.allclose(plain, ours, atol=1e-2 if plain.dtype == torch.bfloat16 else 1e-4):
        raise TrainError(
            f"{type(model).__name__} changes its logits after the output projection, which the trainer does "
            "not reproduce: choose a model without logit scaling or soft caps"
        )


def _project(head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = -functional.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        every = torch.log_softmax(logits, dim=-1)
        entropy = -(every.exp() * every).sum(-1)
    return logprobs, entropy
