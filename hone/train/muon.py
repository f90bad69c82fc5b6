"""Muon on all matrices of one shape at once, which takes a third of the time for small matrices."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class BatchedMuon(torch.optim.Muon):
    """Same update and state as `torch.optim.Muon`, with the step size matched to AdamW's."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        updates: list[Tensor] = []
        for parameter in parameters:
            state, gradient = self.state[parameter], cast("Tensor", parameter.grad)
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(buffer, momentum) if group["nesterov"] else buffer)
        directions = orthogonalised(
            torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = lr * 0.2 * max(parameters[0].shape) ** 0.5  # equal to the RMS of AdamW's updates
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-rate)


def orthogonalised(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return bfloat16 [N, A, B]: each matrix with singular values near 1, by Newton-Schulz steps.

    The quintic iteration of Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/).
    """
    linear, cubic, quintic = coefficients
    x = matrices.bfloat16()
    tall = x.size(1) > x.size(2)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if tall else x
