"""The seam between messages and tokens: what a transcript asks of a model's renderer.

    render_ids       a whole conversation, encoded from text
    extend           only what comes between a sampled reply and the next one
    parse_response   what a reply says

`FamilyRenderer` (here) serves the model families that the `renderers` package knows by heart, and
`TemplateRenderer` (hone.policy.template) any other chat template. The rule that must not break: `extend`
never encodes a sampled token, and it answers None where it cannot extend.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol

from hone.policy.conversation_tree import Traits
from hone.policy.errors import PolicyError
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped, plain
from hone.policy.reply import ToolSpec
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse, Renderer

DAY = date(2024, 7, 26)  # that prompts name, so that they do not change with the day; Llama's own choice


class ChatRenderer(Protocol):
    """Turns messages into a model's tokens and reads its replies. Raises PolicyError for what it cannot."""

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The whole conversation, every message encoded from its text."""
        ...

    def extend(
        self,
        prompt: list[int],
        reply: list[int],
        said: Message,
        new: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None,
        traits: Traits,
    ) -> list[int] | None:
        """What follows `reply` up to where the next reply begins; None when that cannot be told.

        `prompt` is the end of the reply's prompt, from before the last stop token on; `said` is the reply as
        a message, `new` the messages after it (none of them the assistant's), `traits` those of the messages
        before it. A reply that was cut short is closed first.
        """
        ...

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse: ...

    def get_stop_token_ids(self) -> list[int]: ...


class FamilyRenderer:
    """A renderer of the `renderers` package, with special tokens in messages kept as text.

    Args:
        own_encoder: the renderer does not use the tokenizer for messages, and takes their texts literally.
    """

    def __init__(
        self, renderer: Renderer, tokenizer: LiteralTokenizer, name: str, *, own_encoder: bool = False
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._name = name
        self._own_encoder = own_encoder

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        try:
            return self._renderer.render_ids(
                self._marked(messages), tools=self._shown(tools), add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # renderers refuse a conversation in many ways
            raise PolicyError(
                f"the renderer {self._name!r} refuses the conversation: {first_line(error)}"
            ) from error

    def extend(
        self,
        prompt: list[int],
        reply: list[int],
        said: Message,
        new: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None,
        traits: Traits,
    ) -> list[int] | None:
        past, shown = prompt + reply, self._shown(tools)
        for messages in (self._marked(new), self._marked(_named(said, new))):
            bridged = self._renderer.bridge_to_next_turn(prompt, reply, messages, tools=shown)
            if bridged is not None and bridged.token_ids[: len(past)] == past:
                return bridged.token_ids[len(past) :]
        return None

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        try:
            return self._renderer.parse_response(token_ids, tools=enveloped(tools), prompt_ids=prompt_ids)
        except RecursionError:
            return unreadable(self._tokenizer.decode(token_ids))

    def get_stop_token_ids(self) -> list[int]:
        return self._renderer.get_stop_token_ids()

    def _marked(self, messages: Sequence[Message]) -> list[Any]:
        plainly = [plain(message) for message in messages]
        return plainly if self._own_encoder else self._tokenizer.mark(plainly)

    def _shown(self, tools: Sequence[ToolSpec] | None) -> list[Any] | None:
        given = enveloped(tools)
        return given if self._own_encoder else self._tokenizer.mark_json(given)


def written_ids(
    renderer: ChatRenderer,
    said: Message,
    new: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] | None = None,
) -> list[int] | None:
    """A reply in the tokens a model would have sampled it, the stop token included, with `new` to follow.

    What follows counts: a template may leave out the reasoning of a reply that has been answered. None when
    the template does not write the reply right behind the prompt for it, or refuses it.
    """
    opening: Message = {"role": "user", "content": "x"}
    stops = set(renderer.get_stop_token_ids())
    try:
        prompt = renderer.render_ids([opening], tools=tools, add_generation_prompt=True)
        ids = renderer.render_ids([opening, said, *new], tools=tools)
    except PolicyError:
        return None
    if ids[: len(prompt)] != prompt:
        return None
    end = next((i for i in range(len(prompt), len(ids)) if ids[i] in stops), None)
    return None if end is None else ids[len(prompt) : end + 1]


def unreadable(text: str) -> ParsedResponse:
    """A reply nested too deeply for any parser: one tool call that cannot be read."""
    from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

    call = ParsedToolCall(raw=text, status=ToolCallParseStatus.INVALID_JSON)
    return ParsedResponse(content="", tool_calls=[call])


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _named(said: Message, new: Sequence[Message]) -> list[Message]:
    """Tool results with the name of the tool they come from, by the id of its call, else by their order."""
    calls = said.get("tool_calls") or ()
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
