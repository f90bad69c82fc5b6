"""How a chat template writes tool calls, found by having it write some and reading them back."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hone.policy.errors import PolicyError
from hone.policy.families import family_names, family_renderer
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped
from hone.policy.reply import ToolSpec
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse
    from transformers import PreTrainedTokenizerBase

_TOOL: ToolSpec = {
    "name": "vqxread",
    "description": "Reads.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    },
}
_ARGUMENTS: list[dict[str, Any]] = [{"path": 'a "b".py', "lines": [1, 2]}, {"path": "é\n  c.py", "lines": []}]
_QUESTION: Message = {"role": "user", "content": "vqxuser"}


class Text(Protocol):
    def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = ..., generate: bool = ...
    ) -> str: ...


class Reader(Protocol):
    """Reads a reply; a renderer of the `renderers` package, or one of Hone's."""

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """Who reads the template's tool calls, or why nobody does."""

    shown: bool  # the template shows a model its tools
    reader: Reader | None = None
    refusal: str = ""


def tool_form(text: Text, tokenizer: PreTrainedTokenizerBase, end: str | None) -> ToolForm:
    """The form in which the template `text` writes tool calls; `end` is the token that ends a reply.

    A parser of the `renderers` package, or a model family's, is taken only when it reads back what the
    template writes, names and arguments, for one call and (where it takes them) for two in one reply.
    """
    try:
        prompt = text([_QUESTION], tools=[_TOOL], generate=True)
        if prompt == text([_QUESTION], generate=True):
            return ToolForm(shown=False, refusal="has no place for tools")
        written = [(_written(text, prompt, _ARGUMENTS[:1], end), _ARGUMENTS[:1])]
    except PolicyError:
        return ToolForm(shown=True, refusal="fails on tool calls")
    with suppress(PolicyError):  # some templates take one call a reply
        written.append((_written(text, prompt, _ARGUMENTS, end), _ARGUMENTS))
    for reader in _readers(tokenizer):
        if all(_reads(reader, tokenizer, reply, arguments) for reply, arguments in written):
            return ToolForm(shown=True, reader=reader)
    return ToolForm(shown=True, refusal="writes tool calls in a form that no parser reads back exactly")


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


def _written(text: Text, prompt: str, arguments: list[dict[str, Any]], end: str | None) -> str:
    """What the template writes behind `prompt` for a reply with these calls."""
    calls = [
        {"type": "function", "id": f"vqxcall1{i}", "function": {"name": "vqxread", "arguments": values}}
        for i, values in enumerate(arguments)
    ]
    reply: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    written = text([_QUESTION, reply], tools=[_TOOL])
    if end is None or not written.startswith(prompt) or end not in written[len(prompt) :]:
        return ""
    return written[len(prompt) : written.rindex(end)]


def _reads(
    reader: Reader, tokenizer: PreTrainedTokenizerBase, written: str, arguments: list[dict[str, Any]]
) -> bool:
    from renderers.base import ToolCallParseStatus

    ids = tokenizer.encode(written, add_special_tokens=False)
    calls = reader.parse_response(ids, tools=enveloped([_TOOL])).tool_calls
    return [(call.status, call.name, call.arguments) for call in calls] == [
        (ToolCallParseStatus.OK, "vqxread", values) for values in arguments
    ]
