"""The interface between messages and tokens.

    render_ids       encode a whole conversation from text
    extend           encode only the messages between a sampled reply and the next one
    parse_response   parse a reply into text, reasoning and tool calls

`FamilyRenderer` (here) supports the model families of the `renderers` package, `TemplateRenderer`
(hone.policy.template) any other chat template. Invariant: `extend` never re-encodes a sampled token; it
returns None if it cannot extend.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol

from hone.policy.conversation_tree import Traits
from hone.policy.errors import PolicyError
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped, key_of, plain, read_reply, reasoning_of
from hone.policy.reply import ToolSpecs
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse, Renderer
    from transformers import PreTrainedTokenizerBase

_OPENING: Message = {"role": "user", "content": "x"}
DAY = date(2024, 7, 26)  # the date in prompts, fixed so that runs repeat; Llama's default
_HARMONY = "gpt-oss"  # rendered by openai-harmony, which has its own encoder
_HARMONY_OPTIONS: dict[str, Any] = {
    "conversation_start_date": DAY.isoformat(),
    "auto_drop_analysis": False,  # keep past reasoning, as `thinking_retention` does elsewhere
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedReply:
    """A reply in the middle of a conversation."""

    prompt: list[int]  # the end of its prompt, including at least the last stop token
    tokens: list[int]
    message: Message
    traits: Traits  # of the messages before it


class ChatRenderer(Protocol):
    """Turns messages into tokens and parses replies; raises PolicyError for messages it cannot render."""

    def render_ids(
        self, messages: Sequence[Message], *, tools: ToolSpecs = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """Return the token ids of the whole conversation, every message encoded from its text."""
        ...

    def extend(
        self, reply: RenderedReply, new: Sequence[Message], tools: ToolSpecs = None
    ) -> list[int] | None:
        """Return the tokens between `reply` and the start of the next reply; None if they are not certain.

        `new` are the messages between the two. A truncated reply is closed first.
        """
        ...

    def parse_response(
        self, token_ids: list[int], *, tools: ToolSpecs = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse: ...

    def get_stop_token_ids(self) -> list[int]: ...


class FamilyRenderer:
    """A renderer of the `renderers` package that keeps special tokens inside messages as text.

    Args:
        own_encoder: the renderer encodes messages itself, already as literal text.
    """

    def __init__(
        self, renderer: Renderer, tokenizer: LiteralTokenizer, name: str, *, own_encoder: bool = False
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._name = name
        self._own_encoder = own_encoder

    def render_ids(
        self, messages: Sequence[Message], *, tools: ToolSpecs = None, add_generation_prompt: bool = False
    ) -> list[int]:
        try:
            return self._renderer.render_ids(
                self._marked(messages), tools=self._tools(tools), add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # renderers raise many types of errors
            raise PolicyError(
                f"the renderer {self._name!r} rejected the conversation: {first_line(error)}"
            ) from error

    def extend(
        self, reply: RenderedReply, new: Sequence[Message], tools: ToolSpecs = None
    ) -> list[int] | None:
        past, shown = reply.prompt + reply.tokens, self._tools(tools)
        for messages in (self._marked(new), self._marked(_with_tool_names(reply.message, new))):
            bridged = self._renderer.bridge_to_next_turn(reply.prompt, reply.tokens, messages, tools=shown)
            if bridged is not None and bridged.token_ids[: len(past)] == past:
                return bridged.token_ids[len(past) :]
        return None

    def parse_response(
        self, token_ids: list[int], *, tools: ToolSpecs = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        try:
            return self._renderer.parse_response(token_ids, tools=enveloped(tools), prompt_ids=prompt_ids)
        except RecursionError:
            return unparsable_reply(self._tokenizer.decode(token_ids))

    def get_stop_token_ids(self) -> list[int]:
        return self._renderer.get_stop_token_ids()

    def _marked(self, messages: Sequence[Message]) -> list[Any]:
        plainly = [plain(message) for message in messages]
        return plainly if self._own_encoder else self._tokenizer.mark(plainly)

    def _tools(self, tools: ToolSpecs) -> list[Any] | None:
        given = enveloped(tools)
        return given if self._own_encoder else self._tokenizer.mark_json(given)


def family_names() -> list[str]:
    """Return every family, in the order in which `auto` tries them."""
    from renderers.base import MODEL_RENDERER_MAP

    return list(dict.fromkeys(MODEL_RENDERER_MAP.values()))


def family_renderer(
    tokenizer: PreTrainedTokenizerBase, name: str, *, thinking: bool = True
) -> FamilyRenderer | str:
    """Return the renderer of a family, or the reason why it does not fit this tokenizer.

    Past reasoning stays in the prompt, so sampled tokens are not rendered again. Without `thinking` the
    prompt tells the model not to reason.
    """
    import renderers
    from renderers.configs import config_from_name

    if name not in family_names():
        return f"unknown renderer; choose one of: auto, default, {', '.join(sorted(family_names()))}"
    settings: Any = type(config_from_name(name))
    if not thinking and "enable_thinking" not in settings.model_fields:
        return "the prompts of this family cannot tell a model not to reason: set model.thinking = true"
    options: dict[str, Any] = {} if thinking else {"enable_thinking": False}
    if name == _HARMONY:
        options |= _HARMONY_OPTIONS
    literal = LiteralTokenizer(tokenizer)
    try:
        renderer = renderers.create_renderer(literal, settings(thinking_retention="all", **options))
    except Exception as error:  # renderers raise many types of errors, assertions included
        return first_line(error)
    return FamilyRenderer(renderer, literal, name, own_encoder=name == _HARMONY)


def rendered_reply_ids(
    renderer: ChatRenderer, reply_message: Message, new: Sequence[Message], *, tools: ToolSpecs = None
) -> list[int] | None:
    """Return the ids of a reply as the template renders it before `new`, the stop token included.

    `new` matters: a template may omit the reasoning of an answered reply. None if the template rejects the
    reply or does not render it right after its prompt.
    """
    stops = set(renderer.get_stop_token_ids())
    try:
        prompt = renderer.render_ids([_OPENING], tools=tools, add_generation_prompt=True)
        ids = renderer.render_ids([_OPENING, reply_message, *new], tools=tools)
    except PolicyError:
        return None
    if ids[: len(prompt)] != prompt:
        return None
    end = next((i for i in range(len(prompt), len(ids)) if ids[i] in stops), None)
    return None if end is None else ids[len(prompt) : end + 1]


def verified_reply_ids(
    renderer: ChatRenderer, reply_message: Message, new: Sequence[Message] = (), *, tools: ToolSpecs = None
) -> list[int] | None:
    """Return the ids of a reply as the model would sample it: the renderer parses the same reply from them.

    None if there are none. `new` are the messages after the reply.
    """
    opening = renderer.render_ids([_OPENING], tools=tools, add_generation_prompt=True)
    for following in ((), new):
        ids = rendered_reply_ids(renderer, reply_message, following, tools=tools)
        if ids is not None:
            parsed = renderer.parse_response(ids, tools=tools, prompt_ids=opening)
            back = read_reply(parsed, 0).to_message()
            reasoning = (reasoning_of(back) or "", reasoning_of(reply_message) or "")
            if key_of(back) == key_of(reply_message) and reasoning[0] == reasoning[1]:
                return ids
    return None


def unparsable_reply(text: str) -> ParsedResponse:
    """Return a reply with one malformed tool call, for text that is nested too deeply to parse."""
    from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

    call = ParsedToolCall(raw=text, status=ToolCallParseStatus.INVALID_JSON)
    return ParsedResponse(content="", tool_calls=[call])


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _with_tool_names(reply_message: Message, new: Sequence[Message]) -> list[Message]:
    """Return `new` with a tool name on each tool result, found by call id or else by order."""
    calls = reply_message.get("tool_calls") or ()
    names = {call.get("id"): call["function"]["name"] for call in calls}
    order = [call["function"]["name"] for call in calls]
    results: list[Message] = []
    position = 0
    for message in new:
        if message["role"] == "tool":
            by_order = order[position] if position < len(order) else None
            name = message.get("name") or names.get(message.get("tool_call_id"), by_order)
            position += 1
            results.append({**message, "name": name} if name else message)
        else:
            results.append(message)
    return results
