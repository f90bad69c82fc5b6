"""Make the optimisers: AdamW, or Muon for the matrices of the layers and AdamW for the rest."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from hone.train.muon import BatchedMuon
from hone.train.settings import OptimizerSettings

if TYPE_CHECKING:  # its import takes seconds
    from transformers import PreTrainedModel


def make_optimizers(model: PreTrainedModel, settings: OptimizerSettings) -> list[Optimizer]:
    """Return the optimisers that together update every trainable parameter of `model`.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises the momentum of each
    matrix. Its step is scaled to the root mean square of AdamW's (arXiv:2502.16982, section 2.2), so that one
    learning rate serves both.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    by_adamw, optimizers = trained, list[Optimizer]()
    if settings.name == "muon":
        heads = [h for h in (model.get_input_embeddings(), model.get_output_embeddings()) if h is not None]
        ends = {id(p) for head in heads for p in head.parameters()}
        by_muon = [p for p in trained if p.ndim == 2 and id(p) not in ends]
        muon_ids = {id(p) for p in by_muon}
        by_adamw = [p for p in trained if id(p) not in muon_ids]
        optimizers.append(
            BatchedMuon(
                by_muon,
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
            )
        )
    return [*optimizers, _adamw(by_adamw, settings)]


def _adamw(parameters: list[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Return AdamW with weight decay on matrices only."""
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )
