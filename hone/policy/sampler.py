# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Sample one token per row, each row with its own settings and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hone.policy.engine import EngineError, Sampling
from hone.types import Float32


class RowSampler:
    """The sampling settings of a batch as tensors; build a new one whenever the rows change."""

    def __init__(self, settings: Sequence[Sampling], device: torch.device) -> None:
        temperatures = [s.temperature for s in settings]
        self._greedy = torch.tensor([t == 0 for t in temperatures], device=device)
        self._any_greedy = 0 in temperatures
        self._scale = torch.tensor([1 / t if t else 1.0 for t in temperatures], device=device)[:, None]
        self._unscaled = set(temperatures) <= {0.0, 1.0}
        self._any_cut = any(s.top_p < 1 or s.top_k > 0 for s in settings)
        self._top_p = torch.tensor([s.top_p for s in settings], dtype=torch.float64, device=device)[:, None]
        self._top_k = torch.tensor([s.top_k or 2**31 for s in settings], device=device)[:, None]

    def draw(self, logits: Tensor, uniforms: Sequence[float]) -> tuple[list[int], Float32]:
        """Return one token per row of `logits` [B, V] and its logprob [B] as `Sampling` defines it.

        Inverse transform sampling: `uniforms` holds one number per row, from `uniforms` below, so a row's
        token depends only on its own logits and number.
        """
        scaled = logits.float() if self._unscaled else logits.float() * self._scale
        logprobs = torch.log_softmax(scaled, dim=-1)
        probabilities = logprobs.double().exp()
        if self._any_cut:
            probabilities = probabilities * self._kept_mask(probabilities)
        cumulative = probabilities.cumsum(dim=-1)
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
        tokens = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
        tokens.clamp_(max=logits.shape[-1] - 1)  # exceeded only if the logits are NaN
        if self._any_greedy:
            tokens = torch.where(self._greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
        chosen = cast(Float32, logprobs.gather(1, tokens)[:, 0].cpu().numpy())
        if not np.isfinite(chosen).all():
            raise EngineError("the model's logits are not finite: the weights have diverged or are corrupt")
        ids: list[int] = tokens[:, 0].tolist()
        return ids, chosen

    def _kept_mask(self, probabilities: Tensor) -> Tensor:
        """Return bool [B, V]: the tokens that top-k and top-p keep, always including the most likely one."""
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        ranks = torch.arange(ordered.shape[-1], device=ordered.device)[None, :]
        keep = ((before < self._top_p) | (self._top_p >= 1)) & (ranks < self._top_k)
        keep[:, 0] = True
        return torch.zeros_like(keep).scatter(1, order, keep)


def uniforms(seed: int | None, count: int) -> list[float]:
    """Return `count` random numbers in [0, 1 - 2**-52] from a counter-based generator.

    The upper bound keeps a scaled and rounded number below the total, so no draw falls past the last token.
    """
    drawn = np.random.Generator(np.random.Philox(seed)).random(count)
    return np.minimum(drawn, 1 - 2**-52).tolist()
