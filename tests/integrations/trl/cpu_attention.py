"""What TRL's packed trainer needs of a GPU, for a CPU: variable-length attention in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention


class CpuFlash:
    """The one function of FlashAttention that TRL calls, bottom-right causal as that is."""

    @staticmethod
    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_q: torch.Tensor,
        cu_k: torch.Tensor,
        *_: Any,
        softmax_scale: float | None = None,
        causal: bool = True,
        **__: Any,
    ) -> torch.Tensor:
        assert causal
        repeats = q.shape[1] // k.shape[1]
        parts: list[torch.Tensor] = []
        bounds = zip(cu_q.tolist(), cu_q.tolist()[1:], cu_k.tolist(), cu_k.tolist()[1:], strict=False)
        for q_low, q_high, k_low, k_high in bounds:
            queries, keys = q_high - q_low, k_high - k_low
            mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            own = [x[k_low:k_high].repeat_interleave(repeats, 1).transpose(0, 1) for x in (k, v)]
            out = scaled_dot_product_attention(
                q[q_low:q_high].transpose(0, 1), own[0], own[1], attn_mask=mask, scale=softmax_scale
            )
            parts.append(out.transpose(0, 1))
        return torch.cat(parts)


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    monkeypatch.setattr(packing, "_flash_attn", lambda: CpuFlash)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
