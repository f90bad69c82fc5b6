"""Log-probabilities and entropies of positions, from one pass over their logits.

Only the positions that predict a trained token are projected onto the vocabulary. At most one chunk of logits
exists at a time: each chunk but the last is computed again for the backward pass, and gradients of logits
take the memory of the logits.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_BLOCK_ELEMENTS = 1 << 20  # logits that are converted to float32 at once


def score(
    head: nn.Module, hidden: Tensor, targets: Tensor, *, temperature: float, logit_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return log_softmax(head(hidden) / temperature) at `targets` and the entropies in nats.

    Both are float32 [N]; entropies have no gradient. `hidden` is [N, C], `targets` int64 [N]. `head` may be
    any module from [n, C] to logits [n, V]; it runs on at most `logit_tokens` positions at a time.
    """

    def chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return cast("tuple[Tensor, Tensor]", _Score.apply(head(rows), ids, temperature))

    starts = range(0, max(len(targets), 1), logit_tokens)
    parts: list[tuple[Tensor, Tensor]] = []
    for start in starts:
        rows, ids = hidden[start : start + logit_tokens], targets[start : start + logit_tokens]
        if start == starts[-1]:  # its backward pass is the first: its logits may stay
            parts.append(chunk(rows, ids))
        else:
            parts.append(cast("Any", checkpoint(chunk, rows, ids, use_reentrant=False)))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


class _Score(torch.autograd.Function):
    """From logits [n, V] and targets [n] to log-probabilities and entropies, block by block of rows.

    With z = logits / temperature and p = softmax(z): log p = z - logsumexp(z), the entropy is
    logsumexp(z) - sum(p z), and the gradient of log p[target] by the logits is
    (onehot(target) - p) / temperature.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        entropies, norms = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for rows in _row_blocks(logits):
            block = logits[rows].float() / temperature
            norms[rows] = norm = block.logsumexp(-1)
            logprobs[rows] = block.gather(-1, targets[rows, None])[:, 0] - norm
            weights = (block - norm[:, None]).exp_()
            entropies[rows] = norm - weights.mul_(block).sum(-1)
        ctx.save_for_backward(logits, targets, norms)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, norms = ctx.saved_tensors
        grad = grads[0] / ctx.temperature
        for rows in _row_blocks(logits):
            block = logits[rows].float().div_(ctx.temperature).sub_(norms[rows, None]).exp_()
            block.mul_(-grad[rows, None])
            block.scatter_add_(-1, targets[rows, None], grad[rows, None])
            logits[rows] = block.to(logits.dtype)  # nothing else reads the logits after this
        return logits, None, None


def _row_blocks(logits: Tensor) -> list[slice]:
    rows, vocabulary = logits.shape
    size = max(1, _BLOCK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, rows, size)]
