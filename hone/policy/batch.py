# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The batch of the local engine: rows join after a prefill and leave when they finish, at any step.

    admit: copy saved keys and values into a row, prefill the rest, sample the first token
    step:  sample one token for every row

The rows in use are always the first ones, so attention reads the cache in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from hone.policy.engine import Completion, EngineError, Finish, Sampling
from hone.policy.errors import PolicyError
from hone.policy.kv import RowCache, SavedCache, SessionCaches, shared_prefix
from hone.policy.routing import as_routing, chosen_experts, find_routers, routing_shape
from hone.policy.settings import LocalEngineSettings
from hone.types import Float32, Routing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


_MIN_SHARED_TOKENS = 32  # with so long a common prefix a request waits one step for the other's prefill


@dataclass(slots=True, kw_only=True, eq=False)
class DecodeRow:
    """A request in the batch. `tokens` holds the prompt and the tokens sampled so far."""

    session: str
    sampling: Sampling
    tokens: list[int]
    prompt_length: int
    limit: int  # maximum number of tokens to sample
    cached: int = 0  # leading tokens whose keys and values are in the row
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    uniforms: list[float] = field(default_factory=list[float])
    routing: list[Routing] = field(default_factory=list[Routing])  # [layers, k] of each position computed

    def __post_init__(self) -> None:
        self.uniforms = uniforms(self.sampling.seed, self.limit)

    def finish(self) -> Finish | None:
        if len(self.tokens) > self.prompt_length and self.tokens[-1] in self.sampling.stop_token_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.logprobs) == self.limit else None

    def completion(self, finish: Finish) -> Completion:
        return Completion(
            token_ids=np.asarray(self.tokens[self.prompt_length :], np.int32),
            logprobs=np.asarray(self.logprobs, np.float32),
            version=np.asarray(self.versions, np.int32),
            finish=finish,
            routing=np.stack(self.routing) if self.routing else None,
        )

    def add_routing(self, start: int, routing: Sequence[Routing]) -> None:
        """Record the experts of the positions from `start` that have none yet.

        A position that was computed before an update keeps the experts that the sampled tokens depend on.
        """
        self.routing += routing[len(self.routing) - start :]


def _require_full_attention(config: Any) -> None:
    """Raise PolicyError if some layer does not attend to all earlier tokens."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
        raise PolicyError(
            f"the local engine supports full attention only, and this {config.model_type} model has other "
            'layers: use another model, or engine.kind = "vllm" or "sglang"'
        )


class Batch:
    """Rows, their cache and the model. Not thread-safe: one thread owns it."""

    def __init__(self, model: PreTrainedModel, settings: LocalEngineSettings) -> None:
        config = model.config
        _require_full_attention(config)
        heads: int = config.num_attention_heads
        self.version = 0
        self.sessions = SessionCaches(settings.cached_sessions)
        self.rows: list[DecodeRow] = []
        self._model: Any = model
        self._settings = settings
        self._device = model.device
        self._sampler: RowSampler | None = None
        self._routers = find_routers(model)
        self._cache = RowCache(
            layers=config.num_hidden_layers,
            rows=settings.max_batch,
            kv_heads=getattr(config, "num_key_value_heads", heads),
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=model.dtype,
            device=model.device,
        )

    def admit(self, waiting: Sequence[DecodeRow]) -> list[DecodeRow]:
        """Admit the requests that fit and sample their first tokens; return the admitted rows.

        A request with a long prefix in common with a row admitted now waits for the next call, which can copy
        the keys and values.
        """
        chosen: list[DecodeRow] = []
        for row in waiting:
            if len(self.rows) + len(chosen) == self._settings.max_batch:
                break
            if self._should_wait(row, chosen):
                continue
            chosen.append(row)
        sources = {id(row): self._source(row) for row in chosen}
        chosen.sort(key=lambda row: len(row.tokens) - sources[id(row)][1])
        first = len(self.rows)
        for row in chosen:
            self._load(row, *sources[id(row)])
        while first < len(self.rows):
            end = self._prefill_group(first)
            if end == first + 1:
                self._prefill_long(first)
            self._advance(first, end)
            first = end
        return chosen

    def step(self) -> None:
        """Sample one token for every row."""
        if self.rows:
            self._advance(0, len(self.rows))

    def remove(self, row: DecodeRow) -> None:
        """Remove the row from the batch and save its cache for the conversation's next turn."""
        index, last = self.rows.index(row), len(self.rows) - 1
        saved = self._cache.save(index, row.tokens[: row.cached], row.routing[: row.cached])
        self.sessions.put(row.session, saved)
        if index != last:
            moved = self.rows[last]
            self._cache.copy(last, index, moved.cached)
            self.rows[index] = moved
        self.rows.pop()
        self._sampler = None

    def set_version(self, version: int) -> list[DecodeRow]:
        """Drop every key and value after a weight update; return the rows to admit again."""
        self.version = version
        self.sessions.clear()
        rows, self.rows, self._sampler = self.rows, [], None
        return rows

    def _should_wait(self, row: DecodeRow, chosen: Sequence[DecodeRow]) -> bool:
        if not chosen or self.sessions.has(row.session):
            return False
        tokens = np.asarray(row.tokens, np.int32)
        shared = max(shared_prefix(np.asarray(other.tokens, np.int32), tokens) for other in chosen)
        if shared < _MIN_SHARED_TOKENS:
            return False
        return shared >= self._source(row)[1] + _MIN_SHARED_TOKENS

    def _source(self, row: DecodeRow) -> tuple[SavedCache | int | None, int]:
        """Return the saved cache or row index with the longest cached prefix of the row, and its length.

        The last token is always computed, since the sampler needs its logits.
        """
        tokens = np.asarray(row.tokens[:-1], np.int32)
        found = self.sessions.find(row.session, tokens)
        source: SavedCache | int | None
        source, length = found if found is not None else (None, 0)
        if not self.sessions.has(row.session):
            for index, other in enumerate(self.rows):
                shared = shared_prefix(np.asarray(other.tokens[: other.cached], np.int32), tokens)
                if shared > length:
                    source, length = index, shared
        return source, length

    def _load(self, row: DecodeRow, source: SavedCache | int | None, length: int) -> None:
        index = len(self.rows)
        self._cache.reserve(length)
        if isinstance(source, SavedCache):
            self._cache.load(index, source, length)
        elif source is not None:
            self._cache.copy(source, index, length)
        if source is not None:
            other = source if isinstance(source, SavedCache) else self.rows[source]
            row.add_routing(0, other.routing[:length])
        self.sessions.drop(row.session)
        row.cached = length
        self.rows.append(row)
        self._sampler = None

    def _prefill_group(self, first: int) -> int:
        """Return the end of the rows from `first` that are prefilled together: those of similar length."""
        shortest = len(self.rows[first].tokens) - self.rows[first].cached
        end = first + 1
        while end < len(self.rows):
            longest = len(self.rows[end].tokens) - self.rows[end].cached
            too_many = longest * (end + 1 - first) > self._settings.prefill_tokens
            if too_many or longest > 2 * shortest + 16:
                break
            end += 1
        return end

    def _prefill_long(self, index: int) -> None:
        """Prefill a row that is too long for one forward pass in pieces, all but the last piece."""
        row, piece = self.rows[index], self._settings.prefill_tokens
        while len(row.tokens) - row.cached > piece:
            self._logits(index, [row], row.cached + piece)
            row.cached += piece

    def _advance(self, first: int, end: int) -> None:
        """Compute the uncached tokens of rows [first, end) and sample the next token of each."""
        rows = self.rows[first:end]
        logits = self._logits(first, rows)
        if end - first == len(self.rows):
            sampler = self._sampler = self._sampler or RowSampler([r.sampling for r in rows], self._device)
        else:
            sampler = RowSampler([r.sampling for r in rows], self._device)
        tokens, logprobs = sampler.draw(logits, [row.uniforms[len(row.logprobs)] for row in rows])
        for row, token, logprob in zip(rows, tokens, logprobs.tolist(), strict=True):
            row.cached = len(row.tokens)
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)

    def _logits(self, first: int, rows: Sequence[DecodeRow], until: int | None = None) -> Tensor:
        """Return logits [len(rows), V] after each row's last token, or after its first `until` tokens.

        Shorter rows are padded on the left.
        """
        ends = [len(row.tokens) if until is None else until for row in rows]
        width = max(end - row.cached for row, end in zip(rows, ends, strict=True))
        length = max(ends)
        self._cache.reserve(length)
        trash = self._cache.capacity
        ids: list[list[int]] = []
        positions: list[list[int]] = []
        columns: list[list[int]] = []
        for row, end in zip(rows, ends, strict=True):
            new = range(row.cached, end)
            padding = width - len(new)
            ids.append([0] * padding + row.tokens[row.cached : end])
            positions.append([0] * padding + list(new))
            columns.append([trash] * padding + list(new))
        at = torch.tensor(positions, device=self._device)
        self._cache.set_targets(first, torch.tensor(columns, device=self._device), length)
        with chosen_experts(self._routers) as chosen:
            output = self._model(
                input_ids=torch.tensor(ids, device=self._device),
                attention_mask=self._mask(at, length),
                position_ids=at,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        if chosen:
            self._record(chosen, rows, ends)
        return output.logits[:, -1]

    def _record(self, chosen: Mapping[int, Tensor], rows: Sequence[DecodeRow], ends: Sequence[int]) -> None:
        """Record the experts of a forward pass over the rows up to `ends`; see `_logits`."""
        router: Any = next(iter(self._routers.values()))
        every = as_routing(chosen, routing_shape(self._model, self._routers), int(router.num_experts))
        width = len(every) // len(rows)
        for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
            last = (index + 1) * width
            row.add_routing(row.cached, list(every[last - end + row.cached : last]))

    def _mask(self, positions: Tensor, length: int) -> Tensor:
        """Return [rows, 1, T, length]: 0 where a token at `positions` [rows, T] attends, else -inf."""
        if positions.numel() == 1:  # a single new token attends to everything
            return torch.zeros((1, 1, 1, length), dtype=self._model.dtype, device=self._device)
        hidden = torch.arange(length, device=self._device) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._model.dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))
