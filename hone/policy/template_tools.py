"""Find the parser for a template's tool calls: render some calls and parse them back."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hone.policy.errors import PolicyError
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped
from hone.policy.rendering import family_names, family_renderer
from hone.policy.reply import ToolSpec
from hone.types import Message

if TYPE_CHECKING:
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
        prompt = text([_QUESTION], tools=[_TOOL], generate=True)
        if prompt == text([_QUESTION], generate=True):
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
    rendered = text([_QUESTION, reply], tools=[_TOOL])
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
