"""Checks of a server before its first use: token ids, log-probabilities and context length."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from hone.policy.engine import EngineError
from hone.policy.engines.client import EngineClient, Refused, ServerInfo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT = "The bug is in line 4"
_TOLERANCE = 0.02  # of a logprob; larger than the rounding of bfloat16 logits
_MIN_DIFFERENCE = 0.2  # of two logprobs, so that the effect of temperature shows
_SAMPLED_TOKENS = 32  # whose decoded text is compared


async def run_preflight(
    client: EngineClient, tokenizer: PreTrainedTokenizerBase, context_tokens: int
) -> tuple[ServerInfo, bool]:
    """Check a server before any of its tokens is used; raise EngineError if it cannot be used.

    Its logprobs must be those that `Sampling` defines, its tokenizer the policy's, its context long enough.

    Returns its facts, and whether its logprobs are over the whole vocabulary even where top-p or top-k apply.
    """
    info = await client.server_info()
    if info.context_tokens < context_tokens:
        raise EngineError(
            f"{client.url} serves a context of {info.context_tokens} tokens and engine.context_tokens is "
            f"{context_tokens}: start the server with a longer one, or lower the setting"
        )
    prompt = await _require_vocabulary(client, tokenizer)
    return info, await _require_temperature_logprobs(client, prompt)


async def _require_vocabulary(client: EngineClient, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Raise EngineError unless server and tokenizer agree; return a prompt that the server accepts."""
    prompt: list[int] = [*tokenizer.encode(PROMPT, add_special_tokens=False), len(tokenizer) - 1]
    name: str = tokenizer.name_or_path
    other = EngineError(
        f"{client.url} serves a model with another vocabulary than the tokenizer {name!r}: serve the model "
        "that model.path names"
    )
    try:
        ids, text = await client.sample_text(prompt, _SAMPLED_TOKENS)
    except Refused as error:
        if error.status == 400:
            raise other from error
        raise
    if not ids:
        raise EngineError(
            f"{client.url} answers, but returns no tokens: check that it serves a language model, and its log"
        )
    # A model may have more rows than the tokenizer has tokens; such rows have no text to compare.
    decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if max(ids) < len(tokenizer) and _plain(decoded) != _plain(text):
        raise other
    return prompt


def _plain(text: str | list[str]) -> str:
    """Remove outer whitespace and cut characters, which depend on where the text begins and ends."""
    return str(text).replace("\ufffd", "").strip()


async def _require_temperature_logprobs(client: EngineClient, prompt: list[int]) -> bool:
    """Raise EngineError unless logprobs follow temperature; return whether they ignore top-k.

    Dividing the logits by 0.5 doubles the difference between any two log-probabilities.
    """
    plain = await client.top_logprobs(prompt, temperature=1.0)
    sharp = await client.top_logprobs(prompt, temperature=0.5)
    shared = sorted(plain.keys() & sharp.keys(), key=lambda token: plain[token])
    if len(shared) < 2 or plain[shared[-1]] - plain[shared[0]] < _MIN_DIFFERENCE:
        raise EngineError(
            f"the log-probabilities of {client.url} cannot be checked, because its model finds every token "
            "equally likely: serve a model that has been trained"
        )
    low, high = shared[0], shared[-1]
    difference = plain[high] - plain[low]
    if abs((sharp[high] - sharp[low]) - 2 * difference) > _TOLERANCE * (1 + difference):
        raise EngineError(
            f"{client.url} reports log-probabilities that do not follow temperature: start it with `hone "
            "engine serve`, or with --logprobs-mode processed_logprobs (vLLM), or without "
            "SGLANG_RETURN_ORIGINAL_LOGPROB"
        )
    cut = await client.top_logprobs(prompt, temperature=1.0, top_k=2)
    best = max(plain, key=lambda token: plain[token])
    return best in cut and abs(cut[best] - plain[best]) <= _TOLERANCE
