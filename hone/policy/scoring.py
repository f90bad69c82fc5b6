"""Log-probabilities of given tokens: the forward passes of `LocalEngine.score`.

    requests -> batches of similar length -> pieces of a bounded number of positions -> log-probabilities

Rows are padded on the right, where no token attends to the padding, so no mask is needed.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from hone.policy.engine import EngineError
from hone.types import Float32, Int32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_POSITIONS = 2048  # of one forward pass, whose logits over the vocabulary are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreRequest:
    tokens: Int32  # [T]
    start: int  # the first token to score
    done: Future[Float32] = field(default_factory=Future[Float32])


def next_batch(waiting: Sequence[ScoreRequest], max_tokens: int) -> list[ScoreRequest]:
    """Return the oldest request and others, shortest first, that fit one batch of padded rows with it."""
    oldest, *others = waiting
    batch, longest = [oldest], len(oldest.tokens)
    for request in sorted(others, key=lambda each: len(each.tokens)):
        width = max(longest, len(request.tokens))
        if width * (len(batch) + 1) > max_tokens:
            break
        batch.append(request)
        longest = width
    return batch


def score_batch(model: PreTrainedModel, requests: Sequence[ScoreRequest]) -> list[Float32]:
    """Return the log-probabilities [T - start] of each request; call it in inference mode.

    Raises EngineError if one is not finite.
    """
    from transformers import DynamicCache

    rows, width = len(requests), max(len(request.tokens) for request in requests)
    padded = np.zeros((rows, width), np.int64)
    for row, request in zip(padded, requests, strict=True):
        row[: len(request.tokens)] = request.tokens
    ids = torch.tensor(padded, device=model.device)
    first = min(request.start for request in requests) - 1  # the position that predicts the first token
    piece = max(1, _POSITIONS // rows)
    cache = DynamicCache(config=model.config)
    parts: list[Tensor] = []
    for begin in range(0, width - 1, piece):
        end = min(begin + piece, width - 1)
        kept = max(1, end - max(begin, first))  # 1: logits_to_keep = 0 would keep all
        output = cast(Any, model)(
            input_ids=ids[:, begin:end],
            position_ids=torch.arange(begin, end, device=model.device).expand(rows, -1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=kept,
        )
        if end > first:
            targets = ids[:, end - kept + 1 : end + 1, None]
            parts.append(torch.log_softmax(output.logits.float(), -1).gather(2, targets)[:, :, 0])
    scores = cast(Float32, torch.cat(parts, 1).cpu().numpy())
    own = [
        row[r.start - 1 - first : len(r.tokens) - 1 - first] for row, r in zip(scores, requests, strict=True)
    ]
    if not all(np.isfinite(row).all() for row in own):
        raise EngineError("the model's logits are not finite: the weights have diverged or are corrupt")
    return [row.copy() for row in own]
