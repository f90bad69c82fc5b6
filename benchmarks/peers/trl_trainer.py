"""One optimiser step of TRL's GRPOTrainer on given samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from hone.types import Sample


def trl_step(
    model: PreTrainedModel, samples: Sequence[Sample], rows: int, lr: float, out: Path
) -> Callable[[], object]:
    """Return a step of TRL's loss on `model`, accumulated over micro-batches of `rows` samples.

    The batch is padded here, before the step, as TRL's trainer pads it. Its options are the defaults but for
    what a CPU needs; AdamW is torch's fused one.
    """
    words = Tokenizer(models.WordLevel({"w0": 0}, unk_token="w0"))
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(out),
            use_cpu=True,
            report_to=[],
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=400,
            loss_type="grpo",
        ),
        train_dataset=Dataset.from_list([{"prompt": "w0"}]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w0"),
    )
    model.train()
    batch = trl_batch(samples)
    pieces = [{k: v[i : i + rows] for k, v in batch.items()} for i in range(0, len(samples), rows)]
    trainer.current_gradient_accumulation_steps = len(pieces)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=True)

    def step() -> None:
        for piece in pieces:
            trainer._compute_loss(model, piece).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def trl_batch(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """TRL's layout: prompts padded on the left, completions on the right, observations masked."""
    starts = [int(np.flatnonzero(s.weight)[0]) for s in samples]
    prompt, width = max(starts), max(len(s.tokens) - at for s, at in zip(samples, starts, strict=True))
    names = (
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "tool_mask",
        "old_per_token_logps",
    )
    arrays: dict[str, Any] = {
        name: np.zeros((len(samples), prompt if name.startswith("prompt") else width)) for name in names
    }
    for row, (s, at) in enumerate(zip(samples, starts, strict=True)):
        end = len(s.tokens) - at
        arrays["prompt_ids"][row, prompt - at :] = s.tokens[:at]
        arrays["prompt_mask"][row, prompt - at :] = 1
        arrays["completion_ids"][row, :end] = s.tokens[at:]
        arrays["completion_mask"][row, :end] = 1
        arrays["tool_mask"][row, :end] = s.weight[at:]
        arrays["old_per_token_logps"][row, :end] = s.logprobs[at:]
    batch = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
    batch["old_per_token_logps"] = torch.from_numpy(arrays["old_per_token_logps"]).float()
    batch["advantages"] = torch.tensor([float(s.advantage.sum() / s.weight.sum()) for s in samples])
    return batch
