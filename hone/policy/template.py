"""Extend a conversation with any chat template, without rendering it again where that is provably right.

A template is a black box. The renderer finds the text between the end of a reply and the next generation
prompt by rendering a short placeholder conversation:

    prompt     the rendering of [history], with the generation prompt
    full       the rendering of [history, reply, new messages], with the generation prompt
    extension  the part of `full` after the token that ends the reply

The renderer uses an extension only if all of these hold; otherwise it reports no extension:
- Every placeholder history of the conversation's kind (system message, tool calls, reasoning, several
  exchanges) gives the same extension.
- `full` always starts with `prompt`: text before the reply does not depend on later messages.
- `full` contains the reply's text, calls and reasoning, rendered as for the last reply of a conversation (or
  without any markup, if the reply has no reasoning).
- The extension contains every new message.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hone.policy.conversation_tree import Traits
from hone.policy.errors import PolicyError
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped, plain
from hone.policy.rendering import (
    DAY,
    RenderedReply,
    family_names,
    family_renderer,
    first_line,
    unparsable_reply,
)
from hone.policy.reply import ToolCall, ToolSpec, ToolSpecs
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse
    from transformers import PreTrainedTokenizerBase

_TEXT, _REASONING = "vqxsaid", "vqxthought"  # placeholders for the text and the reasoning of a reply
_USER: Message = {"role": "user", "content": "vqxuser"}
_SYSTEM: Message = {"role": "system", "content": "vqxsystem"}
_REPLY: Message = {"role": "assistant", "content": "vqxreply"}
_CALL = {"type": "function", "id": "vqxcall12", "function": {"name": "vqxtool", "arguments": {"vqx": "1"}}}
_RESULT: Message = {"role": "tool", "content": "vqxresult", "tool_call_id": "vqxcall12"}
_DIRECTIVES = ("a", "A", "b", "B", "d", "-d", "e", "j", "m", "-m", "y", "Y", "H", "I", "M", "S", "p")
# Replaces the function that gives a template today's date: prompts must not change from day to day.
_CLOCK = (
    "{% macro strftime_now(format) %}{% set day = format"
    + "".join(f"|replace('%{d}', '{DAY.strftime(f'%{d}')}')" for d in _DIRECTIVES)
    + " %}{% if '%' in day %}{{ raise_exception('it formats the date by ' ~ format) }}{% endif %}"
    "{{ day }}{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlaceholderReply:
    """A reply with marker words in place of the sampled text."""

    message: Message
    markers: tuple[str, ...]  # must all appear in the rendering
    shape: tuple[object, ...]  # the properties on which a template may branch


@dataclass(frozen=True, slots=True, kw_only=True)
class _RenderedTurn:
    """The rendering of a reply and of the messages after it, in segments."""

    head: str  # everything up to and including the token that ends the reply
    lead: str  # from the end of the prompt to the reply's first marker
    closing: str  # from the reply's last marker to the end of `head`
    extension: str  # everything after `head`


class TemplateRenderer:
    """Render with the tokenizer's own chat template.

    Raises PolicyError for a template that fails on a plain conversation.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        import renderers

        self._tokenizer = LiteralTokenizer(tokenizer)
        self._name = tokenizer.name_or_path
        probe = [_USER, {"role": "assistant", "content": _TEXT}]
        self._parts = False
        try:
            text = self.text(probe)
            self._parts = _TEXT not in text  # templates of multimodal models take a list of parts
        except PolicyError:
            self._parts = True
        text = self.text(probe)
        if _TEXT not in text:
            raise PolicyError(
                f"the chat template of {self._name!r} omits assistant messages: fix the template, or set "
                "model.renderer to the renderer of the model's family"
            )
        self._end = _last_added_token(tokenizer, text[text.rindex(_TEXT) + len(_TEXT) :])
        ends = (self._end, tokenizer.eos_token)
        names = [str(token) for token in dict.fromkeys(ends) if token]
        self._stops = cast("list[int]", tokenizer.convert_tokens_to_ids(names))
        self._tools: ToolSupport = detect_tool_support(self.text, tokenizer, self._end)
        self._reader = self._tools.reader or renderers.create_renderer(
            self._tokenizer, renderers.DefaultRendererConfig()
        )
        self._thinking = tokenizer.encode("<think>", add_special_tokens=False)
        self._stable: dict[object, list[Message] | None] = {}
        self._roles = {"assistant"}  # roles whose messages the template renders

    def render_ids(
        self, messages: Sequence[Message], *, tools: ToolSpecs = None, add_generation_prompt: bool = False
    ) -> list[int]:
        if tools and self._tools.problem:
            raise PolicyError(
                f"the chat template of {self._name!r} {self._tools.problem}: use an agent that writes its "
                "actions as text, or a model with a renderer of its own"
            )
        for role in {message["role"] for message in messages} - self._roles:
            self._require_role(role)
        text = self.text(messages, tools=tools, generate=add_generation_prompt)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def extend(
        self, reply: RenderedReply, new: Sequence[Message], tools: ToolSpecs = None
    ) -> list[int] | None:
        parsed = self.parse_response(reply.tokens, tools=tools, prompt_ids=reply.prompt)
        placeholder = _placeholder_reply(parsed, reply.message)
        history = self._history(placeholder, new, tools, reply.traits)
        turn = self._render_turn(history, placeholder, new, tools) if history is not None else None
        if turn is None or self._end is None:
            return None
        if reply.tokens and reply.tokens[-1] in self._stops:
            ids = self._tokenizer.encode(self._end + turn.extension, add_special_tokens=False)
            return ids[ids.index(self._stops[0]) + 1 :]
        closing = self._end if placeholder.message.get("tool_calls") else turn.closing
        return self._tokenizer.encode_continuation(closing + turn.extension)

    def parse_response(
        self, token_ids: list[int], *, tools: ToolSpecs = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """Parse with the `renderers` package; strip the line breaks between the parts of a reply."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self._stops else token_ids
        end = cast("str", self._tokenizer.decode(prompt_ids[-8:])) if prompt_ids else ""
        prefilled = self._thinking if end.rstrip().endswith("<think>") else None
        try:
            parsed = self._reader.parse_response(ids, tools=enveloped(tools), prompt_ids=prefilled)
        except RecursionError:
            return unparsable_reply(cast("str", self._tokenizer.decode(ids)))
        content, reasoning = parsed.content, parsed.reasoning_content
        if reasoning is not None:
            content, reasoning = content.lstrip("\n"), reasoning.strip("\n")
        if parsed.tool_calls:
            content = content.rstrip("\n")
        return dataclasses.replace(parsed, content=content, reasoning_content=reasoning)

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stops)

    @property
    def shows_tools(self) -> bool:
        """Return whether the template renders tools at all."""
        return self._tools.shown

    def text(self, messages: Sequence[Message], *, tools: ToolSpecs = None, generate: bool = False) -> str:
        """Return the rendered text; special tokens inside messages are marked as literal text."""
        rendered: list[Any] = self._tokenizer.mark([plain(message) for message in messages])
        if self._parts:
            rendered = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in rendered]
        shown = self._tokenizer.mark_json(enveloped(tools))
        try:
            return cast(
                "str",
                self._tokenizer.apply_chat_template(
                    rendered,
                    tools=shown,
                    chat_template=_CLOCK + self._tokenizer.get_chat_template(tools=shown),
                    add_generation_prompt=generate,
                    tokenize=False,
                ),
            )
        except Exception as error:  # jinja errors, and any error that the template raises
            raise PolicyError(
                f"the chat template of {self._name!r} rejected the conversation: {first_line(error)}"
            ) from error

    def _require_role(self, role: str) -> None:
        """Raise PolicyError when the template omits messages of `role`."""
        probe: Message = {"role": role, "content": _TEXT}
        before = {"system": [], "tool": [_USER, {**_REPLY, "tool_calls": [_CALL]}]}.get(role, [])
        after = [_USER] if role == "system" else []
        text = self.text([*before, {**_RESULT, **probe} if role == "tool" else probe, *after])
        if _TEXT not in text:
            raise PolicyError(
                f"the chat template of {self._name!r} omits messages of the role {role!r}: use an agent "
                "that does not send any"
            )
        self._roles.add(role)

    def _history(
        self,
        placeholder: _PlaceholderReply,
        new: Sequence[Message],
        tools: ToolSpecs,
        traits: Traits,
    ) -> list[Message] | None:
        """Return the longest placeholder history; None if the extension differs between histories."""
        shape = (traits, placeholder.shape, tuple(message["role"] for message in new), bool(tools))
        if shape not in self._stable:
            following = [{**message, "content": f"vqxnew{i}"} for i, message in enumerate(new)]
            best: list[Message] | None = None
            extensions: set[str | None] = set()
            for history in _histories(traits):
                try:
                    extensions.add(self._verified_extension(history, placeholder, following, tools))
                except PolicyError:
                    continue  # the template rejects this history
                best = history
            self._stable[shape] = best if len(extensions) == 1 and None not in extensions else None
        return self._stable[shape]

    def _verified_extension(
        self,
        history: Sequence[Message],
        placeholder: _PlaceholderReply,
        new: Sequence[Message],
        tools: ToolSpecs,
    ) -> str | None:
        """Return the extension after `history`; None if it cannot be verified."""
        turn = self._render_turn(history, placeholder, new, tools)
        if turn is None or not all(message["content"] in turn.extension for message in new):
            return None
        alone = self.text([*history, placeholder.message], tools=tools).startswith(turn.head)
        plain = not turn.lead.strip() and placeholder.message.get("reasoning_content") != ""
        return turn.extension if alone or plain else None

    def _render_turn(
        self,
        history: Sequence[Message],
        placeholder: _PlaceholderReply,
        new: Sequence[Message],
        tools: ToolSpecs,
    ) -> _RenderedTurn | None:
        """Return the rendered segments; None if earlier text depends on later messages."""
        prompt = self.text(history, tools=tools, generate=True)
        text = self.text([*history, placeholder.message, *new], tools=tools, generate=True)
        positions = [text.find(marker, len(prompt)) for marker in placeholder.markers]
        if self._end is None or not text.startswith(prompt) or -1 in positions:
            return None
        marked_end = max(
            position + len(marker) for position, marker in zip(positions, placeholder.markers, strict=True)
        )
        end = text.find(self._end, marked_end)
        if end == -1:
            return None
        end += len(self._end)
        return _RenderedTurn(
            head=text[:end],
            lead=text[len(prompt) : min(positions)],
            closing=text[marked_end:end],
            extension=text[end:],
        )


def _placeholder_reply(parsed: ParsedResponse, reply_message: Message) -> _PlaceholderReply:
    """Return a reply with the same parts as `parsed`, filled with markers."""
    reasoning = parsed.reasoning_content
    calls: list[ToolCall] = reply_message.get("tool_calls") or []
    message: Message = {"role": "assistant", "content": ""}
    markers: list[str] = []
    if reasoning is not None:
        message["reasoning_content"] = _REASONING if reasoning.strip() else ""
        markers += [_REASONING] if reasoning.strip() else []
    if parsed.content.strip() or not (markers or calls):
        message["content"] = _TEXT
        markers.append(_TEXT)
    if calls:
        message["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": {"vqx": f"vqxcall{i}"}}}
            for i, call in enumerate(calls)
        ]
        markers += [f"vqxcall{i}" for i in range(len(calls))]
    shape = (message.get("reasoning_content"), message["content"], len(calls))
    return _PlaceholderReply(message=message, markers=tuple(markers), shape=shape)


def _histories(traits: Traits) -> Iterator[list[Message]]:
    """Yield short conversations with the same traits as the real one."""
    opening = [_SYSTEM, _USER] if traits.system else [_USER]
    reply = {**_REPLY, "reasoning_content": "vqxpast"} if traits.reasoning else _REPLY
    yield opening
    yield [*opening, reply, _USER]
    if traits.calls:
        for first in (reply, {**reply, "content": ""}):
            yield [*opening, {**first, "tool_calls": [_CALL]}, _RESULT]
            yield [*opening, {**first, "tool_calls": [_CALL]}, _RESULT, reply, _USER]


def _last_added_token(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """Return the last added token in `text`; None if it contains none."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
    found = [(text.rindex(token) + len(token), len(token), token) for token in added if token in text]
    return max(found)[2] if found else None


_TOOL: ToolSpec = {
    "name": "vqxread",
    "description": "Reads.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    },
}
_ARGUMENTS: list[dict[str, Any]] = [{"path": 'a "b".py', "lines": [1, 2]}, {"path": "é\n  c.py", "lines": []}]


RenderText = Callable[..., str]  # `TemplateRenderer.text`
Reader = Any  # parses a reply: a renderer of the `renderers` package or of Hone


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSupport:
    """How to parse the template's tool calls, or why that is impossible."""

    shown: bool  # the template renders tools
    reader: Reader | None = None
    problem: str = ""


def detect_tool_support(text: RenderText, tokenizer: PreTrainedTokenizerBase, end: str | None) -> ToolSupport:
    """Return the tool support of the template `text`; `end` is the token that ends a reply.

    A parser of the `renderers` package or of a model family qualifies only if it parses the rendered names
    and arguments back, for one call and (if the template accepts them) for two calls in one reply.
    """
    try:
        prompt = text([_USER], tools=[_TOOL], generate=True)
        if prompt == text([_USER], generate=True):
            return ToolSupport(shown=False, problem="does not render tools")
        rendered = [(_rendered_calls(text, prompt, _ARGUMENTS[:1], end), _ARGUMENTS[:1])]
    except PolicyError:
        return ToolSupport(shown=True, problem="fails on tool calls")
    with suppress(PolicyError):  # some templates accept one call per reply
        rendered.append((_rendered_calls(text, prompt, _ARGUMENTS, end), _ARGUMENTS))
    for reader in _readers(tokenizer):
        if all(_parses_back(reader, tokenizer, reply, arguments) for reply, arguments in rendered):
            return ToolSupport(shown=True, reader=reader)
    return ToolSupport(shown=True, problem="renders tool calls in a format that no parser reads back exactly")


def _readers(tokenizer: PreTrainedTokenizerBase) -> Iterator[Reader]:
    from renderers import DefaultRendererConfig, create_renderer
    from renderers.parsers import TOOL_PARSERS

    literal = LiteralTokenizer(tokenizer)
    for parser in TOOL_PARSERS:
        yield create_renderer(literal, DefaultRendererConfig(tool_parser=parser))
    for name in family_names():
        renderer = family_renderer(tokenizer, name)
        if not isinstance(renderer, str):
            yield renderer


def _rendered_calls(text: RenderText, prompt: str, arguments: list[dict[str, Any]], end: str | None) -> str:
    """Return the text after `prompt` that the template renders for these calls."""
    calls = [
        {"type": "function", "id": f"vqxcall1{i}", "function": {"name": "vqxread", "arguments": values}}
        for i, values in enumerate(arguments)
    ]
    reply: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    rendered = text([_USER, reply], tools=[_TOOL])
    if end is None or not rendered.startswith(prompt) or end not in rendered[len(prompt) :]:
        return ""
    return rendered[len(prompt) : rendered.rindex(end)]


def _parses_back(
    reader: Reader, tokenizer: PreTrainedTokenizerBase, rendered: str, arguments: list[dict[str, Any]]
) -> bool:
    from renderers.base import ToolCallParseStatus

    ids = tokenizer.encode(rendered, add_special_tokens=False)
    calls = reader.parse_response(ids, tools=enveloped([_TOOL])).tool_calls
    return [(call.status, call.name, call.arguments) for call in calls] == [
        (ToolCallParseStatus.OK, "vqxread", values) for values in arguments
    ]
