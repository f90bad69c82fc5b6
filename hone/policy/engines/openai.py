"""Any OpenAI-compatible endpoint as a chat, for evaluation: text and tool calls, no tokens.

Its token tree stays empty and its replies name no node, so nothing it says can ever be trained on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hone.policy.engine import ContextOverflow, EngineError, Sampling
from hone.policy.engines.client import Http, Refused, ServerUnavailable
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.policy.settings import OpenAIEngineSettings
from hone.types import Call, Message, TokenTree
from hone.utils.retry import backoff_delays, retry

_BACKOFF_S = 0.5  # before the first retry; doubles
_CHARACTERS = 3  # per token, by which the length of a prompt is estimated from above
_BUSY = 429


class OpenAIChat:
    """One conversation. `measure` estimates, because the endpoint's tokenizer is unknown.

    Raises EngineError for a sampling with `top_k`, which is not part of the protocol.
    """

    def __init__(self, http: Http, settings: OpenAIEngineSettings, sampling: Sampling) -> None:
        if sampling.top_k:
            raise EngineError("the engine openai has no top-k: set sampling.top_k = 0")
        self.tree = TokenTree()
        self.forks = Counter[str]()
        self.calls: list[Call] = []
        self._http = http
        self._settings = settings
        self._sampling = sampling

    @property
    def max_prompt_tokens(self) -> int:
        return self._settings.context_tokens - self._sampling.max_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        """Return an estimate that is rather too high."""
        return sum(len(str(part)) for part in (*messages, *(tools or ()))) // _CHARACTERS

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        """Return the endpoint's reply. Raises ContextOverflow, EngineError."""
        started = time.monotonic()
        answer = await self._complete(messages, tools)
        try:
            reply = read_reply(answer)
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(
                f"{self._http.url} gave no chat completion ({error!r}): see engine.urls, which ends in /v1"
            ) from error
        usage: Mapping[str, Any] = answer.get("usage") or {}
        if usage.get("completion_tokens") == 0:
            raise EngineError(
                f"{self._http.url} returned no tokens: check that {self._settings.model_name} is a language "
                "model, and its log"
            )
        self.calls.append(
            Call(
                index=len(self.calls),
                node=None,
                purpose=purpose,
                fork=None,
                prompt_tokens=reply.prompt_tokens,
                sampled_tokens=reply.sampled_tokens,
                seconds=time.monotonic() - started,
            )
        )
        return reply

    async def close(self) -> None:
        return None

    async def _complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> Any:
        sampling = self._sampling
        body: dict[str, Any] = {
            "model": self._settings.model_name,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % 2**31
        if tools:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
        timeout_s = self._settings.request_timeout_s
        try:
            return await retry(
                lambda: self._http.post("/chat/completions", body, timeout_s=timeout_s),
                attempts=1 + self._settings.retries,
                delays=backoff_delays(_BACKOFF_S),
                transient=lambda error: (
                    isinstance(error, ServerUnavailable)
                    or (isinstance(error, Refused) and error.status == _BUSY)
                ),
            )
        except Refused as error:
            if error.status == 400 and "context" in str(error):
                needed = self.measure(messages, tools=tools)
                raise ContextOverflow(needed, self._settings.context_tokens) from error
            raise


def read_reply(answer: Mapping[str, Any]) -> Reply:
    """Convert a chat completion. Raises KeyError, IndexError or TypeError when it is malformed."""
    choice = answer["choices"][0]
    message = choice["message"]
    usage: Mapping[str, Any] = answer.get("usage") or {}
    return Reply(
        content=message.get("content") or "",
        node=None,
        reasoning=message.get("reasoning_content") or message.get("reasoning"),
        tool_calls=tuple(message.get("tool_calls") or ()),
        truncated=choice["finish_reason"] == "length",
        prompt_tokens=usage.get("prompt_tokens") or 0,
        sampled_tokens=usage.get("completion_tokens") or 0,
    )
