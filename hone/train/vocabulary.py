"""Log-probabilities and entropies of positions, from one pass over their logits.

Only the positions that predict a trained token are projected onto the vocabulary. At most one chunk of logits
exists at a time: each chunk but the last is computed again for the backward pass, and gradients of logits
take the memory of the logits.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import functools
from collections.abc import Callable
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
    """From logits [n, V] and targets [n] to log-probabilities and entropies; the logits become gradients."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
        entropies, norms = torch.empty_like(logprobs), torch.empty_like(logprobs)
        kernel = _kernel(score_rows, logits.device.type)
        for rows in _row_blocks(logits):
            logprobs[rows], entropies[rows], norms[rows] = kernel(logits[rows], targets[rows], temperature)
        ctx.save_for_backward(logits, targets, norms)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, norms = ctx.saved_tensors
        kernel = _kernel(replace_by_gradient, logits.device.type)
        for rows in _row_blocks(logits):  # nothing else reads the logits after this
            kernel(logits[rows], targets[rows], norms[rows], grads[0][rows], ctx.temperature)
        return logits, None, None


def score_rows(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies and log-sum-exps, float32 [n] each, of logits [n, V].

    With z = logits / temperature and p = softmax(z): log p = z - logsumexp(z), and the entropy is
    logsumexp(z) - sum(p z).
    """
    scaled = logits.float() / temperature
    norms = scaled.logsumexp(-1)
    logprobs = scaled.gather(-1, targets[:, None])[:, 0] - norms
    entropies = norms - (scaled - norms[:, None]).exp_().mul_(scaled).sum(-1)
    return logprobs, entropies, norms


def replace_by_gradient(
    logits: Tensor, targets: Tensor, norms: Tensor, grad: Tensor, temperature: float
) -> None:
    """Overwrite logits [n, V] by the gradient of sum(grad x log p[target]); `grad` is [n].

    The gradient of log p[target] by the logits is (onehot(target) - p) / temperature.
    """
    at, norms, grad = targets[:, None], norms[:, None], grad[:, None] / temperature
    hit = (logits.gather(-1, at).float() / temperature - norms).exp()
    logits.copy_(logits.float().div_(temperature).sub_(norms).exp_().mul_(-grad))
    logits.scatter_(-1, at, ((1 - hit) * grad).to(logits.dtype))


def _row_blocks(logits: Tensor) -> list[slice]:
    """Return the rows that a kernel takes at once: all on a GPU, whose kernels make no float32 copy."""
    rows, vocabulary = logits.shape
    if logits.is_cuda:
        return [slice(0, rows)]
    size = max(1, _BLOCK_ELEMENTS // vocabulary)
    return [slice(start, start + size) for start in range(0, rows, size)]


@functools.cache
def _kernel(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return `function` fused into a few kernels on CUDA, and as it is elsewhere."""
    return torch.compile(function, dynamic=True, fullgraph=True) if device == "cuda" else function
