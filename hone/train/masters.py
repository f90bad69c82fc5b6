"""Master weights: the float32 parameters that the optimiser updates.

bfloat16 has 8 bits of mantissa, so an update of 1e-6 of a weight of 0.01 rounds to nothing: the optimiser
updates a float32 copy, and the model's weights are that copy rounded (Micikevicius et al., arXiv:1710.03740).
Gradients of several passes are added in float32 for the same reason.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter


class MasterWeights:
    """The float32 masters of a model's trained parameters, by name.

    A float32 parameter on `device` is its own master; any other has a float32 copy on `device`, and its
    gradient moves there after each backward pass. Invariant: between steps each parameter equals its master,
    rounded to the parameter's dtype.
    """

    def __init__(self, parameters: Mapping[str, Parameter], device: torch.device | None = None) -> None:
        """`device`: where masters, gradients and optimiser state are; None: with each parameter."""
        self.parameters: dict[str, Parameter] = {}
        self._copied: list[tuple[Parameter, Parameter]] = []
        for name, parameter in parameters.items():
            where = device or parameter.device
            if parameter.dtype == torch.float32 and parameter.device == where:
                self.parameters[name] = parameter
                continue
            master = Parameter(parameter.detach().to(where, torch.float32, copy=True))
            self.parameters[name] = master
            self._copied.append((parameter, master))
            parameter.register_post_accumulate_grad_hook(_mover(master))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters.values())

    @torch.no_grad()
    def round_to_model(self) -> None:
        """Copy the masters into the model's parameters, in place."""
        for parameter, master in self._copied:
            parameter.copy_(master)

    def clear_gradients(self) -> None:
        for master in self:
            master.grad = None
        for parameter, _ in self._copied:
            parameter.grad = None


def _mover(master: Parameter) -> Callable[[Tensor], None]:
    """Return a hook that adds a parameter's gradient to `master`'s and frees the parameter's."""

    def move(parameter: Tensor) -> None:
        gradient = cast("Tensor", parameter.grad).to(master.device, torch.float32)
        parameter.grad = None
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    return move
