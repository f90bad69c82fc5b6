"""An engine that returns scripted replies, encoded as the model would have sampled them.

Use it to test agents, clients and gateways without a model. The log-probabilities are fake; all else is as
from a real engine: ids that end with a stop token or are truncated, and a version.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, JsonValue, ValidationError

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.errors import PolicyError
from hone.policy.rendering import ChatRenderer, verified_reply_ids
from hone.policy.reply import Reply, tool_call
from hone.settings import Settings
from hone.types import Float32, Int32, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ScriptedCall(Settings):
    """A tool call of a scripted reply."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


class ScriptedReply(Settings):
    """One reply of a script, with optional faults."""

    content: str = ""
    """Text of the reply."""

    reasoning: str = ""
    """Reasoning before the text."""

    tool_calls: tuple[ScriptedCall, ...] = ()
    """Tool calls of the reply."""

    text: str | None = None
    """Raw reply with the model's markup; replaces `content`, `reasoning` and `tool_calls`."""

    finish: Literal["stop", "length"] = "stop"
    """`length`: the reply has no stop token, as if truncated."""

    when: str = ""
    """Answer the first prompt that contains this text; replies without `when` answer in script order."""

    delay_s: float = Field(default=0.0, ge=0)
    """Duration of the engine call, in seconds."""

    error: str = ""
    """The engine fails with this message; the next call gets the next reply."""

    drop_after_bytes: int | None = Field(default=None, ge=0)
    """The gateway closes the connection once, after so many bytes of the response body."""

    def to_message(self) -> Message:
        calls = (tool_call(f"call_{i}", call.name, call.arguments) for i, call in enumerate(self.tool_calls))
        reply = Reply(content=self.content, node=None, reasoning=self.reasoning, tool_calls=tuple(calls))
        return reply.to_message()


def read_script(path: Path) -> tuple[ScriptedReply, ...]:
    """Return the replies in a file, one per line of JSON. Raises PolicyError naming the first bad line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the script {path} cannot be read: {error}") from error
    replies: list[ScriptedReply] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            replies.append(ScriptedReply.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            field = "".join(f"{part}: " for part in first["loc"])
            raise PolicyError(f"{path}, line {number}: {field}{first['msg']}") from error
    return tuple(replies)


class ScriptedEngine:
    """Plays the script from the start in every session. See `hone.policy.engine.Engine`.

    `prompts` and `completions` record the calls in order of completion. Raises PolicyError if the chat
    template cannot render a reply.
    """

    def __init__(
        self,
        script: Sequence[ScriptedReply],
        renderer: ChatRenderer,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context_tokens: int = 131_072,
    ) -> None:
        self.prompts: list[list[int]] = []
        self.completions: list[Completion] = []
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._version = 0
        self._ids = [(reply, encode_reply(reply, renderer, tokenizer)) for reply in script]
        self._unused: dict[str, list[int]] = {}  # session -> indices of the replies not given yet
        self._drops: dict[str, int] = {}
        self._running = asyncio.Event()
        self._running.set()

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @property
    def version(self) -> int:
        return self._version

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Return the next reply. Raises EngineError at the end of the script or for a reply with `error`."""
        if len(prompt_ids) >= self._context_tokens:
            raise ContextOverflow(len(prompt_ids), self._context_tokens)
        prompt = [int(token) for token in prompt_ids]
        await self._running.wait()
        reply, ids = self._ids[self._take(session, prompt)]
        await asyncio.sleep(reply.delay_s)
        if reply.error:
            raise EngineError(reply.error)
        if reply.drop_after_bytes is not None:
            self._drops[session] = reply.drop_after_bytes
        truncated = reply.finish == "length" or len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        completion = Completion(
            token_ids=np.asarray(ids, np.int32),
            logprobs=fake_logprobs(len(ids), len(self.completions)),
            version=np.full(len(ids), self._version, np.int32),
            finish=Finish.LENGTH if truncated else Finish.STOP,
        )
        self.prompts.append(prompt)
        self.completions.append(completion)
        return completion

    def take_drop(self, session: str) -> int | None:
        """Return, once, after how many bytes to cut the response of this session."""
        return self._drops.pop(session, None)

    def _take(self, session: str, prompt: list[int]) -> int:
        unused = self._unused.setdefault(session, list(range(len(self._ids))))
        text = ""
        if any(self._ids[index][0].when for index in unused):
            text = str(self._tokenizer.decode(prompt))
        for conditional in (True, False):  # replies with `when` have priority
            for index in unused:
                when = self._ids[index][0].when
                if bool(when) is conditional and when in text:
                    unused.remove(index)
                    return index
        raise EngineError(f"the script has no reply left for session {session!r}: it has {len(self._ids)}")

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        """Return fake log-probabilities."""
        return fake_logprobs(len(token_ids) - start, 0)

    async def release(self, session: str) -> None:
        self._unused.pop(session, None)
        self._drops.pop(session, None)

    async def set_version(self, version: int) -> None:
        self._version = version

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def health(self) -> None: ...

    async def close(self) -> None: ...


def fake_logprobs(count: int, call: int) -> Float32:
    """Return [count] numbers, distinct between calls, so tests detect mixed-up calls."""
    return -(np.arange(count) / 64 + call + 0.5).astype(np.float32)


def encode_reply(
    reply: ScriptedReply, renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Return the ids of `reply` as the model would sample it, with a stop token unless `finish` is `length`.

    Raises PolicyError if the renderer does not parse the same reply from these ids.
    """
    if reply.text is not None:
        raw: list[int] = tokenizer.encode(reply.text, add_special_tokens=False)
        return raw if reply.finish == "length" else [*raw, renderer.get_stop_token_ids()[0]]
    ids = verified_reply_ids(renderer, reply.to_message())
    if ids is None:
        raise PolicyError(
            f"the model's chat template cannot render the scripted reply {reply.content[:40]!r} with its "
            "reasoning and tool calls: put the raw reply in `text`, or choose another renderer"
        )
    return ids[:-1] if reply.finish == "length" else ids
