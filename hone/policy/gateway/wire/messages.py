"""Anthropic messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Raw
from pydantic_core import from_json, to_json

from hone.policy.gateway.chat_request import ChatRequest, ClientReply, Ending
from hone.policy.gateway.errors import GatewayError, Problem, invalid
from hone.policy.gateway.record import Answer
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json, KnownFields
from hone.policy.gateway.wire.format import Format, event
from hone.policy.reply import ToolSpec
from hone.types import Message

_TOOL = (
    *("name", "description", "input_schema", "type"),
    *("cache_control", "strict", "eager_input_streaming", "defer_loading", "input_examples"),  # no meaning
)
_BLOCKS = {  # the fields of each type of block
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),  # dropped: no reply of this gateway has it
    "tool_use": ("id", "name", "input", "caller"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
_EVERY_BLOCK = ("type", "cache_control", "citations")
_OF_ROLE = {
    "assistant": ("text", "thinking", "tool_use", "redacted_thinking"),
    "user": ("text", "tool_result"),
    "system": ("text",),
}
_STOP = {
    Ending.STOP: "end_turn",
    Ending.STOP_TEXT: "stop_sequence",
    Ending.TOOL_CALLS: "tool_use",
    Ending.LENGTH: "max_tokens",
}


def _keeps_everything(value: Any) -> bool:
    """Return whether a `context_management` drops nothing from the history."""
    edits = fields.as_list(fields.as_object(value, "context_management").get("edits"), "edits")
    return all(edit == {"type": "clear_thinking_20251015", "keep": "all"} for edit in edits)


class AnthropicMessages(Format):
    """`POST /v1/messages`, and the reading of `POST /v1/messages/count_tokens`."""

    stop_field = "stop_sequences"
    encoded_field = "messages"
    known_fields = KnownFields(
        read=("messages", "model", "system", "tools", "tool_choice", "stream", "stop_sequences"),
        overridden=("temperature", "top_p", "top_k", "max_tokens", "thinking", "output_config", "speed"),
        ignored=("metadata", "service_tier", "betas", "cache_control", "inference_geo"),
        neutral={
            "context_management": _keeps_everything,
            "container": fields.is_empty,
            "mcp_servers": fields.is_empty,
            "output_format": fields.is_empty,
        },
    )

    def read_messages(self, body: Json, session: Session) -> list[Message]:
        if fields.as_object(body.get("output_config") or {}, "output_config").get("format"):
            raise invalid("output_config.format is not supported: leave it out", "output_config.format")
        system = fields.joined_text(body.get("system"), "system", ("text",))
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        return session.read(fields.as_list(body.get("messages"), "messages"), _messages, opening)

    def read_tool(self, item: Json, where: str) -> ToolSpec:
        if item.get("type") not in (None, "custom"):
            raise invalid(
                f"{where}.type is {item['type']!r}: only the client's own tools are supported", where
            )
        fields.refuse_others(item, where, _TOOL)
        return fields.tool_spec(item, where, "input_schema")

    def reply(self, answer: Answer) -> Json:
        shown = answer.shown
        return {
            **_head(answer),
            "content": _blocks(shown),
            "stop_reason": _STOP[shown.ending],
            "stop_sequence": shown.stop_text,
            "usage": _usage(answer, answer.exchange.reply.sampled_tokens),
        }

    def events(self, answer: Answer) -> Iterator[bytes]:
        def named(name: str, **data: Any) -> bytes:
            return event({"type": name, **data}, name)

        shown = answer.shown
        start: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer, 1)}
        yield named("message_start", message={**_head(answer), **start})
        for index, block in enumerate(_blocks(shown)):
            empty, deltas = _unfolded(block)
            yield named("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield named("content_block_delta", index=index, delta=delta)
            yield named("content_block_stop", index=index)
        ending = {"stop_reason": _STOP[shown.ending], "stop_sequence": shown.stop_text}
        yield named(
            "message_delta", delta=ending, usage={"output_tokens": answer.exchange.reply.sampled_tokens}
        )
        yield named("message_stop")

    def waiting(self, request: ChatRequest) -> bytes:
        return event({"type": "ping"}, "ping")

    def error(self, error: GatewayError) -> Json:
        message = str(error)
        if error.problem is Problem.TOO_LONG:  # the words that clients look for
            message = f"prompt is too long: {error.prompt_tokens} tokens > {error.context_tokens} maximum"
        return {"type": "error", "error": {"type": error.anthropic_type, "message": message}}

    def error_event(self, error: GatewayError) -> bytes:
        return event(self.error(error), "error")


def _messages(encoded: Raw, number: int) -> list[Message]:
    """Return the messages of one of Anthropic's; tool results in a user's become messages of their own."""
    where = f"messages[{number}]"
    item = fields.read_object(encoded, where)
    fields.refuse_others(item, where, ("role", "content"))
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant") and not (role == "system" and number > 0):
        raise invalid(
            f"{where}.role is {role!r}: user or assistant, or after the first message system", f"{where}.role"
        )
    if content is None:
        raise invalid(f"{where}.content must be a string or a list", f"{where}.content")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    results: list[Message] = []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block, at in fields.as_objects(blocks, f"{where}.content"):
        kind: Any = block.get("type")
        if kind not in _OF_ROLE[role]:
            raise invalid(f"{at} has type {kind!r}: {', '.join(_OF_ROLE[role][:3])}", f"{at}.type")
        fields.refuse_others(block, at, (*_EVERY_BLOCK, *_BLOCKS[kind]))
        if kind == "text":
            texts.append(fields.as_text(block.get("text"), f"{at}.text"))
        elif kind == "thinking":
            thoughts.append(fields.as_text(block.get("thinking"), f"{at}.thinking"))
        elif kind == "tool_use":
            given_arguments = to_json(fields.as_object(block.get("input"), f"{at}.input")).decode()
            calls.append(fields.tool_call(block.get("name"), given_arguments, block.get("id"), at))
        elif kind == "tool_result":
            call_id = fields.as_text(block.get("tool_use_id"), f"{at}.tool_use_id")
            text = fields.joined_text(block.get("content"), f"{at}.content", ("text",))
            results.append({"role": "tool", "content": text, "tool_call_id": call_id})
    message: Message = {"role": role, "content": "\n".join(texts)}
    if role == "user":
        return [*results, message] if texts or not results else results
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _head(answer: Answer) -> Json:
    name = f"msg_{answer.session_id}_{answer.exchange.index}"
    return {"id": name, "type": "message", "role": "assistant", "model": answer.request.model}


def _blocks(shown: ClientReply) -> list[Json]:
    blocks: list[Json] = []
    if shown.reasoning:
        blocks.append({"type": "thinking", "thinking": shown.reasoning, "signature": ""})
    if shown.content or not shown.calls:
        blocks.append({"type": "text", "text": shown.content})
    for call in shown.calls:
        function = call["function"]
        given = from_json(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks


def _unfolded(block: Json) -> tuple[Json, list[Json]]:
    """Return a block as it begins, and the deltas that complete it."""
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": ""},
        ]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    given = to_json(block["input"]).decode()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": given}]


def _usage(answer: Answer, output_tokens: int) -> Json:
    return {
        "input_tokens": answer.exchange.reply.prompt_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
