"""Any chat template, extended instead of rendered anew where that can be shown to be right.

A template is a program whose inside is not known. What it writes between the end of a reply and the next
generation prompt is found by rendering a short stand-in conversation:

    prompt   what it writes for [history], with the generation prompt
    whole    what it writes for [history, reply, new messages], with the generation prompt
    the extension is what `whole` has behind the token that ends the reply

It is used only when every stand-in history of the conversation's kind (with a system message, tool calls,
reasoning, several exchanges) gives the same extension; when `whole` always begins with `prompt`, so that
nothing before the reply depends on what follows; when `whole` holds the reply's text, calls and reasoning,
written as for the last reply of a conversation (or bare, where the reply has no reasoning); and when the
extension shows every new message. Otherwise there is no extension.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hone.policy.conversation_tree import Traits
from hone.policy.errors import PolicyError
from hone.policy.literal import LiteralTokenizer
from hone.policy.messages import enveloped, plain
from hone.policy.rendering import DAY, first_line, unreadable
from hone.policy.reply import ToolCall, ToolSpec
from hone.policy.template_tools import ToolForm, tool_form
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse
    from transformers import PreTrainedTokenizerBase

_SAID, _THOUGHT = "vqxsaid", "vqxthought"  # stand for a reply's text and its reasoning
_USER: Message = {"role": "user", "content": "vqxuser"}
_SYSTEM: Message = {"role": "system", "content": "vqxsystem"}
_REPLY: Message = {"role": "assistant", "content": "vqxreply"}
_CALL = {"type": "function", "id": "vqxcall12", "function": {"name": "vqxtool", "arguments": {"vqx": "1"}}}
_RESULT: Message = {"role": "tool", "content": "vqxresult", "tool_call_id": "vqxcall12"}
_DIRECTIVES = ("a", "A", "b", "B", "d", "-d", "e", "j", "m", "-m", "y", "Y", "H", "I", "M", "S", "p")
# Takes the place of the function by which a template asks for today's date.
_CLOCK = (
    "{% macro strftime_now(format) %}{% set day = format"
    + "".join(f"|replace('%{d}', '{DAY.strftime(f'%{d}')}')" for d in _DIRECTIVES)
    + " %}{% if '%' in day %}{{ raise_exception('it asks for the date as ' ~ format) }}{% endif %}"
    "{{ day }}{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StandIn:
    """A reply that stands for one that was sampled."""

    message: Message
    marks: tuple[str, ...]  # that must be found in what the template writes for it
    shape: tuple[object, ...]  # what the template may decide by


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """What a template writes, cut where a reply ends."""

    head: str  # up to the token that ends the reply, included
    lead: str  # from the end of its prompt to the reply's first mark
    closing: str  # from its last mark to the end of `head`
    extension: str


class TemplateRenderer:
    """The tokenizer's own chat template. Raises PolicyError for one that fails on a plain conversation."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        import renderers

        self._tokenizer = LiteralTokenizer(tokenizer)
        self._name = tokenizer.name_or_path
        probe = [_USER, {"role": "assistant", "content": _SAID}]
        self._parts = False
        try:
            text = self.text(probe)
            self._parts = _SAID not in text  # templates of models that read images take a list of parts
        except PolicyError:
            self._parts = True
        text = self.text(probe)
        if _SAID not in text:
            raise PolicyError(f"the chat template of {self._name!r} leaves out what the assistant says")
        self._end = _last_added_token(tokenizer, text[text.rindex(_SAID) + len(_SAID) :])
        ends = (self._end, tokenizer.eos_token)
        names = [str(token) for token in dict.fromkeys(ends) if token]
        self._stops = cast("list[int]", tokenizer.convert_tokens_to_ids(names))
        self._tools: ToolForm = tool_form(self.text, tokenizer, self._end)
        self._reader = self._tools.reader or renderers.create_renderer(
            self._tokenizer, renderers.DefaultRendererConfig()
        )
        self._thinking = tokenizer.encode("<think>", add_special_tokens=False)
        self._stable: dict[object, list[Message] | None] = {}
        self._roles = {"assistant"}  # whose messages the template is known to show

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        if tools and self._tools.refusal:
            raise PolicyError(
                f"the chat template of {self._name!r} {self._tools.refusal}: use an agent that writes its "
                "actions as text, or a model with a renderer of its own"
            )
        for role in {message["role"] for message in messages} - self._roles:
            self._require_role(role)
        text = self.text(messages, tools=tools, generate=add_generation_prompt)
        return self._tokenizer.encode(text, add_special_tokens=False)

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
        standin = _standin(self.parse_response(reply, tools=tools, prompt_ids=prompt), said)
        history = self._history(standin, new, tools, traits)
        cut = self._cut(history, standin, new, tools) if history is not None else None
        if cut is None or self._end is None:
            return None
        if reply and reply[-1] in self._stops:
            ids = self._tokenizer.encode(self._end + cut.extension, add_special_tokens=False)
            return ids[ids.index(self._stops[0]) + 1 :]
        closing = self._end if standin.message.get("tool_calls") else cut.closing
        return self._tokenizer.inside(closing + cut.extension)

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """As the `renderers` package reads it, without the line breaks between the parts of a reply."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self._stops else token_ids
        end = cast("str", self._tokenizer.decode(prompt_ids[-8:])) if prompt_ids else ""
        prefilled = self._thinking if end.rstrip().endswith("<think>") else None
        try:
            parsed = self._reader.parse_response(ids, tools=enveloped(tools), prompt_ids=prefilled)
        except RecursionError:
            return unreadable(cast("str", self._tokenizer.decode(ids)))
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
        """Whether the template shows a model its tools, in whatever form."""
        return self._tools.shown

    def text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        generate: bool = False,
    ) -> str:
        """What the template writes; special tokens that messages merely mention are marked in it."""
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
        except Exception as error:  # jinja errors, and whatever the template itself raises
            raise PolicyError(
                f"the chat template of {self._name!r} refuses the conversation: {first_line(error)}"
            ) from error

    def _require_role(self, role: str) -> None:
        """Raise PolicyError when the template leaves out what `role` says."""
        probe: Message = {"role": role, "content": _SAID}
        before = {"system": [], "tool": [_USER, {**_REPLY, "tool_calls": [_CALL]}]}.get(role, [])
        after = [_USER] if role == "system" else []
        text = self.text([*before, {**_RESULT, **probe} if role == "tool" else probe, *after])
        if _SAID not in text:
            raise PolicyError(
                f"the chat template of {self._name!r} leaves out messages of the role {role!r}: use an agent "
                "that does not send any"
            )
        self._roles.add(role)

    def _history(
        self,
        standin: _StandIn,
        new: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
        traits: Traits,
    ) -> list[Message] | None:
        """The longest stand-in history to extend behind; None where the extension is not always the same."""
        shape = (traits, standin.shape, tuple(message["role"] for message in new), bool(tools))
        if shape not in self._stable:
            following = [{**message, "content": f"vqxnew{i}"} for i, message in enumerate(new)]
            best: list[Message] | None = None
            extensions: set[str | None] = set()
            for history in _histories(traits):
                try:
                    extensions.add(self._proved(history, standin, following, tools))
                except PolicyError:
                    continue  # not a history that this template takes
                best = history
            self._stable[shape] = best if len(extensions) == 1 and None not in extensions else None
        return self._stable[shape]

    def _proved(
        self,
        history: Sequence[Message],
        standin: _StandIn,
        new: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
    ) -> str | None:
        """The extension behind `history`; None where it cannot be shown to be right."""
        cut = self._cut(history, standin, new, tools)
        if cut is None or not all(message["content"] in cut.extension for message in new):
            return None
        alone = self.text([*history, standin.message], tools=tools).startswith(cut.head)
        plain = not cut.lead.strip() and standin.message.get("reasoning_content") != ""
        return cut.extension if alone or plain else None

    def _cut(
        self,
        history: Sequence[Message],
        standin: _StandIn,
        new: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
    ) -> _Cut | None:
        """What the template writes for a reply and behind it; None where the past depends on what follows."""
        prompt = self.text(history, tools=tools, generate=True)
        text = self.text([*history, standin.message, *new], tools=tools, generate=True)
        places = [text.find(mark, len(prompt)) for mark in standin.marks]
        if self._end is None or not text.startswith(prompt) or -1 in places:
            return None
        said = max(place + len(mark) for place, mark in zip(places, standin.marks, strict=True))
        end = text.find(self._end, said)
        if end == -1:
            return None
        end += len(self._end)
        return _Cut(
            head=text[:end],
            lead=text[len(prompt) : min(places)],
            closing=text[said:end],
            extension=text[end:],
        )


def _standin(parsed: ParsedResponse, said: Message) -> _StandIn:
    """A reply of the same kind, in which marks stand for what was said."""
    reasoning = parsed.reasoning_content
    calls: list[ToolCall] = said.get("tool_calls") or []
    message: Message = {"role": "assistant", "content": ""}
    marks: list[str] = []
    if reasoning is not None:
        message["reasoning_content"] = _THOUGHT if reasoning.strip() else ""
        marks += [_THOUGHT] if reasoning.strip() else []
    if parsed.content.strip() or not (marks or calls):
        message["content"] = _SAID
        marks.append(_SAID)
    if calls:
        message["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": {"vqx": f"vqxcall{i}"}}}
            for i, call in enumerate(calls)
        ]
        marks += [f"vqxcall{i}" for i in range(len(calls))]
    shape = (message.get("reasoning_content"), message["content"], len(calls))
    return _StandIn(message=message, marks=tuple(marks), shape=shape)


def _histories(traits: Traits) -> Iterator[list[Message]]:
    """Short conversations that hold what the real one holds."""
    opening = [_SYSTEM, _USER] if traits.system else [_USER]
    reply = {**_REPLY, "reasoning_content": "vqxpast"} if traits.reasoning else _REPLY
    yield opening
    yield [*opening, reply, _USER]
    if traits.calls:
        for said in (reply, {**reply, "content": ""}):
            yield [*opening, {**said, "tool_calls": [_CALL]}, _RESULT]
            yield [*opening, {**said, "tool_calls": [_CALL]}, _RESULT, reply, _USER]


def _last_added_token(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """The added token that ends `text`, white space aside from it; None when there is none in it."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
    found = [(text.rindex(token) + len(token), len(token), token) for token in added if token in text]
    return max(found)[2] if found else None
