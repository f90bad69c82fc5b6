"""What is found out about a server before any token of it is used.

A server that reports log-probabilities of some other distribution than `Sampling` defines, that spells tokens
differently, or whose context is too short, is refused here in one sentence.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hone.policy.engine import EngineError
from hone.policy.engines.dialect import Dialect
from hone.policy.engines.http import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT = "The bug is in line 4"
_TOLERANCE = 0.02  # in log-probability; rounding of bfloat16 logits stays below, a meaning never
_TELLING = 0.2  # a difference of log-probabilities from which temperature can be told
_SPELLED = 32  # tokens whose spelling is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    context_tokens: int
    label: str  # of the weights it holds
    whole: bool  # log-probabilities are over the whole vocabulary even where top-p or top-k cut it


async def examine(dialect: Dialect, tokenizer: PreTrainedTokenizerBase, context_tokens: int) -> Findings:
    """Ask a server about itself. Raises EngineError with the reason why it cannot be used."""
    facts = await dialect.facts()
    if facts.context_tokens < context_tokens:
        raise EngineError(
            f"{dialect.url} serves a context of {facts.context_tokens} tokens and engine.context_tokens is "
            f"{context_tokens}: start the server with a longer one, or lower the setting"
        )
    prompt = await _require_vocabulary(dialect, tokenizer)
    whole = await _require_meaning(dialect, prompt)
    return Findings(context_tokens=facts.context_tokens, label=facts.label, whole=whole)


async def _require_vocabulary(dialect: Dialect, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Raise unless the server's tokens are the tokenizer's; returns a prompt that it takes."""
    prompt: list[int] = [*tokenizer.encode(PROMPT, add_special_tokens=False), len(tokenizer) - 1]
    name: str = tokenizer.name_or_path
    other = EngineError(
        f"{dialect.url} serves a model with another vocabulary than the tokenizer {name!r}: serve the model "
        "that model.path names"
    )
    try:
        ids, text = await dialect.spell(prompt, _SPELLED)
    except Refused as error:
        if error.status == 400:
            raise other from error
        raise
    # A model may have more rows than there are tokens; what such a row spells says nothing.
    spelled = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if max(ids) < len(tokenizer) and _plain(spelled) != _plain(text):
        raise other
    return prompt


def _plain(text: str | list[str]) -> str:
    """Without what depends on where a server's spelling begins and ends: outer space, cut characters."""
    return str(text).replace("\ufffd", "").strip()


async def _require_meaning(dialect: Dialect, prompt: list[int]) -> bool:
    """Raise unless log-probabilities follow temperature; returns whether they ignore top-k.

    Dividing the logits by 0.5 doubles the difference between any two log-probabilities.
    """
    plain = await dialect.likeliest(prompt, temperature=1.0)
    sharp = await dialect.likeliest(prompt, temperature=0.5)
    shared = sorted(plain.keys() & sharp.keys(), key=lambda token: plain[token])
    if len(shared) < 2 or plain[shared[-1]] - plain[shared[0]] < _TELLING:
        raise EngineError(
            f"it cannot be told what the log-probabilities of {dialect.url} mean, as its model finds every "
            "token equally likely: serve a model that has been trained"
        )
    low, high = shared[0], shared[-1]
    difference = plain[high] - plain[low]
    if abs((sharp[high] - sharp[low]) - 2 * difference) > _TOLERANCE * (1 + difference):
        raise EngineError(
            f"{dialect.url} reports log-probabilities that do not follow temperature: start it with `hone "
            "engine serve`, or with --logprobs-mode processed_logprobs (vLLM), or without "
            "SGLANG_RETURN_ORIGINAL_LOGPROB"
        )
    cut = await dialect.likeliest(prompt, temperature=1.0, top_k=2)
    best = max(plain, key=lambda token: plain[token])
    return best in cut and abs(cut[best] - plain[best]) <= _TOLERANCE
