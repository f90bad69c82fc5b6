"""Tokens per second of the local engine beside transformers.generate, on multi-turn conversations.

    python benchmarks/engine.py [--threads 2] [--repeats 3]

Each conversation has five turns; prompts, replies and observations have ragged lengths, the same for both
sides, and a reply ends at its own length. Only sampled tokens count. Both sample at temperature 1 from the
whole vocabulary. "1" is four conversations one after the other.

- engine: every conversation is its own task that asks for its next turn as soon as it has the last reply. It
  also returns the log-probability of each token.
- transformers.generate: all conversations take a turn together as one left-padded batch, which ends with its
  longest reply; rows that are done stop counting. A batch is computed from its first token in every turn, as
  a ragged batch's cache cannot be continued; one conversation alone hands its cache on to the next turn. No
  log-probabilities.

The two take turns, and the median over the repeats is reported. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging as transformers_logging

from hone.policy.engine import Sampling
from hone.policy.local import LocalEngine
from hone.policy.model import load_model
from hone.policy.settings import LocalEngineSettings, TinyModelSettings
from hone.policy.tiny import make_tiny

TURNS = 5
CONVERSATIONS = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is fixed of a conversation: its prompt, and per turn the reply's length and what comes back."""

    prompt: list[int]
    reply_lengths: list[int]
    observations: list[list[int]]


def make_scripts(count: int, vocab_size: int) -> list[Script]:
    rng = np.random.default_rng(count)

    def text(low: int, high: int) -> list[int]:
        return rng.integers(0, vocab_size, rng.integers(low, high)).tolist()

    return [
        Script(
            prompt=text(80, 320),
            reply_lengths=np.clip(rng.lognormal(3.2, 0.7, TURNS), 4, 120).astype(int).tolist(),
            observations=[text(10, 80) for _ in range(TURNS)],
        )
        for _ in range(count)
    ]


async def run_engine(engine: LocalEngine, scripts: list[Script]) -> None:
    async def converse(name: str, script: Script) -> None:
        tokens = list(script.prompt)
        for length, observation in zip(script.reply_lengths, script.observations, strict=True):
            reply = await engine.generate(tokens, Sampling(max_tokens=length, seed=1), session=name)
            assert len(reply.token_ids) == length
            tokens += [*reply.token_ids.tolist(), *observation]
        await engine.release(name)

    async with asyncio.TaskGroup() as tasks:
        for i, script in enumerate(scripts):
            tasks.create_task(converse(str(i), script))


class EachItsLength(StoppingCriteria):
    """Ends each row of a batch at its own length."""

    def __init__(self, start: int, lengths: list[int]) -> None:
        self.ends = start + torch.tensor(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def run_generate(model: PreTrainedModel, scripts: list[Script]) -> None:
    conversations = [list(script.prompt) for script in scripts]
    cache = DynamicCache(config=model.config) if len(scripts) == 1 else None
    for turn in range(TURNS):
        lengths = [script.reply_lengths[turn] for script in scripts]
        width = max(map(len, conversations))
        ids = torch.tensor([[0] * (width - len(tokens)) + tokens for tokens in conversations])
        mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in conversations])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=max(lengths),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([EachItsLength(width, lengths)]),
            )
        for tokens, row, length, script in zip(conversations, output.tolist(), lengths, scripts, strict=True):
            tokens += [*row[width : width + length], *script.observations[turn]]


def measure(model: PreTrainedModel, count: int, repeats: int) -> tuple[float, float]:
    """Median tokens per second of the engine and of generate, on `count` conversations at a time."""
    scripts = make_scripts(max(count, 4), model.config.vocab_size)
    waves = [scripts[i : i + count] for i in range(0, len(scripts), count)]
    sampled = sum(sum(script.reply_lengths) for script in scripts)
    ours: list[float] = []
    theirs: list[float] = []

    async def alternate() -> None:
        engine = LocalEngine(model, LocalEngineSettings(max_batch=32))
        for _ in range(repeats + 1):
            start = time.perf_counter()
            for wave in waves:
                await run_engine(engine, wave)
            ours.append(sampled / (time.perf_counter() - start))
            start = time.perf_counter()
            for wave in waves:
                run_generate(model, wave)
            theirs.append(sampled / (time.perf_counter() - start))
        await engine.close()

    asyncio.run(alternate())
    return statistics.median(ours[1:]), statistics.median(theirs[1:])  # the first warmed up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)} " * 3 for i in range(600)]
        model = load_model(make_tiny(texts, Path(folder), TinyModelSettings(vocab_size=600)))
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters; {options.threads} threads")
    engine: dict[str, float] = {}
    generate: dict[str, float] = {}
    for count in CONVERSATIONS:
        ours, theirs = measure(model, count, options.repeats)
        engine[f"tokens_per_s_{count}"], generate[f"tokens_per_s_{count}"] = ours, theirs
        print(
            f"{count:3} conversations: engine {ours:5.0f} tok/s, generate {theirs:5.0f}, {ours / theirs:.2f}"
        )
    ratios = {
        f"transformers_generate_{count}": round(
            engine[f"tokens_per_s_{count}"] / generate[f"tokens_per_s_{count}"], 3
        )
        for count in CONVERSATIONS
    }
    peers = {"transformers_generate": {name: round(value, 1) for name, value in generate.items()}}
    metrics = {name: round(value, 1) for name, value in engine.items()}
    print(json.dumps({"name": "engine", "metrics": metrics, "peers": peers, "ratios": ratios}))


if __name__ == "__main__":
    main()
