"""The critic: values instead of log-probabilities, from the hidden states of the policy's own model."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hone.train.policy_model import PolicyModel
from hone.train.settings import MemorySettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "critic"  # the prefix of its parameters in the learner's state


def value_head(model: PreTrainedModel) -> nn.Linear:
    """Return a new float32 head on the model's device; all its values are 0."""
    width = int(model.config.get_text_config().hidden_size)
    head = nn.Linear(width, 1, device=model.device, dtype=torch.float32)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


class ValueModel(PolicyModel):
    """A model that runs passes as the policy does, and gives each target the value of the state before it."""

    def __init__(self, model: PreTrainedModel, head: nn.Linear, memory: MemorySettings) -> None:
        super().__init__(model, temperature=1.0, logit_tokens=1, memory=memory)
        self.head = head

    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values [N] before `targets` [N] from hidden states [N, C], and zeros [N]."""
        values = self.head(hidden.float())[:, 0]
        return values, torch.zeros_like(values, requires_grad=False)
