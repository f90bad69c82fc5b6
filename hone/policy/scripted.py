"""An engine that plays a written session: given replies, as the token ids by which the model would say them.

For trying agents, clients and gateways where no model is at hand. The log-probabilities are made up;
everything else is what a real engine gives: ids that end with a stop token, or are cut, and a version.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.errors import PolicyError
from hone.policy.rendering import ChatRenderer, written_ids
from hone.types import Float32, Int32

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ScriptedCall(_Strict):
    """A tool call of a scripted reply."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])


class ScriptedReply(_Strict):
    """One reply of a script, and what goes wrong with it."""

    content: str = ""
    """What the model says."""

    reasoning: str = ""
    """What it thinks before."""

    tool_calls: tuple[ScriptedCall, ...] = ()
    """The tools that it calls."""

    text: str | None = None
    """The whole reply as the model writes it, markup included, in place of the three above."""

    finish: Literal["stop", "length"] = "stop"
    """`length`: the reply lacks its stop token, as if it had been cut."""

    when: str = ""
    """Answer the first prompt that contains this text; replies without it answer in the script's order."""

    delay_s: float = Field(default=0.0, ge=0)
    """Seconds that the engine takes."""

    error: str = ""
    """The engine fails with this message; asked again, it goes on in the script."""

    drop_after_bytes: int | None = Field(default=None, ge=0)
    """A gateway cuts the connection after so many bytes of the answer's body, once."""


def read_script(path: Path) -> tuple[ScriptedReply, ...]:
    """The replies in a file: a line of JSON each, or (`.toml`) a `[[reply]]` each.

    Raises PolicyError, which names the place, for a file that cannot be read as a script.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the script {path} cannot be read: {error}") from error
    entries: list[tuple[str, Any]]
    try:
        if path.suffix == ".toml":
            table = tomllib.loads(text)
            if table.keys() != {"reply"} or not isinstance(table["reply"], list):
                raise PolicyError(f"the script {path} must hold [[reply]] tables and nothing else")
            entries = [(f"reply {i}", entry) for i, entry in enumerate(cast("list[Any]", table["reply"]), 1)]
        else:
            lines = enumerate(text.splitlines(), 1)
            entries = [(f"line {i}", json.loads(line)) for i, line in lines if line.strip()]
    except ValueError as error:
        raise PolicyError(f"the script {path} is not {path.suffix[1:] or 'jsonl'}: {error}") from error
    return tuple(_reply(entry, f"{path}, {where}") for where, entry in entries)


def _reply(entry: object, where: str) -> ScriptedReply:
    try:
        return ScriptedReply.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise PolicyError(f"{where}: {field + ': ' if field else ''}{first['msg']}") from error


class ScriptedEngine:
    """Plays the script from its beginning in every session. See `hone.policy.engine.Engine`.

    `prompts` and `completions` are what it was asked and what it said, in the order of the answers. Raises
    PolicyError when the model's chat template cannot express a reply.
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
        self._left: dict[str, list[int]] = {}  # session -> what it has not heard yet, as places in the script
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
        """The next reply of the script. Raises EngineError at its end, and where it says so."""
        prompt = [int(token) for token in prompt_ids]
        if len(prompt) >= self._context_tokens:
            raise ContextOverflow(len(prompt), self._context_tokens)
        await self._running.wait()
        reply, ids = self._ids[self._take(session, prompt)]
        await asyncio.sleep(reply.delay_s)
        if reply.error:
            raise EngineError(reply.error)
        if reply.drop_after_bytes is not None:
            self._drops[session] = reply.drop_after_bytes
        cut = reply.finish == "length" or len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        completion = Completion(
            token_ids=np.asarray(ids, np.int32),
            logprobs=made_up_logprobs(len(ids), len(self.completions)),
            version=np.full(len(ids), self._version, np.int32),
            finish=Finish.LENGTH if cut else Finish.STOP,
        )
        self.prompts.append(prompt)
        self.completions.append(completion)
        return completion

    def take_drop(self, session: str) -> int | None:
        """After how many bytes the answer that this session waits for is to be cut; then None."""
        return self._drops.pop(session, None)

    def _take(self, session: str, prompt: list[int]) -> int:
        left = self._left.setdefault(session, list(range(len(self._ids))))
        text = ""
        if any(self._ids[place][0].when for place in left):
            text = str(self._tokenizer.decode(prompt))
        for called in (True, False):  # a reply that waits for such a prompt comes before the next in order
            for place in left:
                when = self._ids[place][0].when
                if bool(when) is called and when in text:
                    left.remove(place)
                    return place
        raise EngineError(f"the script has no reply left for session {session!r}: it has {len(self._ids)}")

    async def release(self, session: str) -> None:
        self._left.pop(session, None)
        self._drops.pop(session, None)

    async def set_version(self, version: int) -> None:
        self._version = version

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def health(self) -> None: ...

    async def close(self) -> None: ...


def made_up_logprobs(count: int, call: int) -> Float32:
    """[count] numbers that no two calls share, so that a mixed-up call shows."""
    return -(np.arange(count) / 64 + call + 0.5).astype(np.float32)


def encode_reply(
    reply: ScriptedReply, renderer: ChatRenderer, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """The ids by which the model would say `reply`, its stop token included unless it is cut.

    Raises PolicyError when the renderer does not read back from them what the script says.
    """
    stops = renderer.get_stop_token_ids()
    if reply.text is not None:
        ids = tokenizer.encode(reply.text, add_special_tokens=False)
        return ids if reply.finish == "length" else [*ids, stops[0]]
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    calls = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in reply.tool_calls]
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": call} for i, call in enumerate(calls)
        ]
    said = written_ids(renderer, message, ())
    if said is None:
        raise _inexpressible(reply)
    opening = renderer.render_ids([{"role": "user", "content": "x"}], add_generation_prompt=True)
    parsed = renderer.parse_response(said, prompt_ids=opening)
    read = [(call.name, _object(call.arguments)) for call in parsed.tool_calls]
    meant: list[tuple[str, Mapping[str, Any]]] = [(call.name, call.arguments) for call in reply.tool_calls]
    told = (parsed.content.strip(), (parsed.reasoning_content or "").strip())
    if read != meant or told != (reply.content.strip(), reply.reasoning.strip()):
        raise _inexpressible(reply)
    return said[:-1] if reply.finish == "length" else said


def _object(arguments: object) -> object:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _inexpressible(reply: ScriptedReply) -> PolicyError:
    return PolicyError(
        f"the model's chat template cannot express the scripted reply {reply.content[:40]!r} with its "
        "reasoning and tool calls: write it as the model would, in `text`, or choose another renderer"
    )
