"""Anthropic messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json, to_json

from hone.policy.gateway.chat_request import ChatRequest, ClientReply, Ending
from hone.policy.gateway.errors import GatewayError, Problem, invalid
from hone.policy.gateway.record import Exchange
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.completions import openai_call
from hone.policy.gateway.wire.fields import Json
from hone.policy.gateway.wire.format import event
from hone.types import Message

_READ = ("messages", "model", "system", "tools", "tool_choice", "stream", "stop_sequences")
_OVERRIDDEN = ("temperature", "top_p", "top_k", "max_tokens", "thinking", "output_config", "speed")
_IGNORED = ("metadata", "service_tier", "betas", "cache_control", "inference_geo")


def _keeps_everything(value: Any) -> bool:
    """Whether a `context_management` drops nothing from the history."""
    edits = fields.as_list(fields.as_object(value, "context_management").get("edits", []), "edits")
    keep = {"type": "clear_thinking_20251015", "keep": "all"}
    return all(edit == keep for edit in edits)


_NEUTRAL = {
    "context_management": _keeps_everything,
    "container": fields.is_empty,
    "mcp_servers": fields.is_empty,
    "output_format": fields.is_empty,
}
_TOOL = (
    *("name", "description", "input_schema", "type"),
    *(
        "cache_control",
        "strict",
        "eager_input_streaming",
        "defer_loading",
        "input_examples",
    ),  # no meaning here
)
_BLOCK = ("cache_control", "citations")  # without a meaning here, in every block
_STOP = {
    Ending.STOP: "end_turn",
    Ending.STOP_TEXT: "stop_sequence",
    Ending.TOOL_CALLS: "tool_use",
    Ending.LENGTH: "max_tokens",
}
_KINDS = {
    Problem.INVALID: "invalid_request_error",
    Problem.TOO_LONG: "invalid_request_error",
    Problem.UNAUTHORIZED: "authentication_error",
    Problem.LIMIT: "permission_error",
    Problem.OBSERVER: "permission_error",
    Problem.NOT_FOUND: "not_found_error",
    Problem.TOO_LARGE: "request_too_large",
    Problem.ENGINE: "api_error",
    Problem.DEFECT: "api_error",
}


class AnthropicMessages:
    """`POST /v1/messages`, and the reading of `POST /v1/messages/count_tokens`."""

    def read(self, body: Json, session: Session) -> ChatRequest:
        overridden, ignored = fields.sort_fields(
            body, read=_READ, overridden=_OVERRIDDEN, ignored=_IGNORED, neutral=_NEUTRAL
        )
        if fields.as_object(overridden.get("output_config") or {}, "output_config").get("format"):
            raise invalid("output_config.format is not supported: leave it out", "output_config.format")
        system = fields.joined_text(body.get("system"), "system", ("text",))
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        messages = session.read(fields.as_list(body.get("messages"), "messages"), _messages, opening)
        tools = tuple(
            _tool(fields.as_object(item, f"tools[{i}]"), f"tools[{i}]")
            for i, item in enumerate(fields.as_list(body.get("tools") or [], "tools"))
        )
        calls_allowed = _may_call(body.get("tool_choice"))
        return ChatRequest(
            messages=messages,
            tools=tools if calls_allowed else (),
            model=fields.as_text(body.get("model") or "", "model"),
            stream=fields.as_flag(body.get("stream"), "stream"),
            stop=tuple(
                text for text in fields.as_texts(body.get("stop_sequences"), "stop_sequences") if text
            ),
            calls_allowed=calls_allowed,
            overridden=overridden,
            ignored=ignored,
            body=body,
        )

    def reply(self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply) -> Json:
        return {
            **_head(session, asked, exchange),
            "content": _blocks(shown),
            "stop_reason": _STOP[shown.ending],
            "stop_sequence": shown.stop_text,
            "usage": _usage(shown, shown.sampled_tokens),
        }

    def events(
        self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply
    ) -> Iterator[bytes]:
        def named(name: str, **data: Any) -> bytes:
            return event({"type": name, **data}, name)

        start: Json = {
            **_head(session, asked, exchange),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        yield named("message_start", message={**start, "usage": _usage(shown, 1)})
        for index, block in enumerate(_blocks(shown)):
            empty, deltas = _unfolded(block)
            yield named("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield named("content_block_delta", index=index, delta=delta)
            yield named("content_block_stop", index=index)
        ending = {"stop_reason": _STOP[shown.ending], "stop_sequence": shown.stop_text}
        yield named("message_delta", delta=ending, usage={"output_tokens": shown.sampled_tokens})
        yield named("message_stop")

    def waiting(self, asked: ChatRequest) -> bytes:
        return event({"type": "ping"}, "ping")

    def error(self, error: GatewayError) -> Json:
        message = str(error)
        if error.problem is Problem.TOO_LONG:  # the words that clients look for
            message = f"prompt is too long: {error.prompt_tokens} tokens > {error.context_tokens} maximum"
        return {"type": "error", "error": {"type": _KINDS[error.problem], "message": message}}

    def error_event(self, error: GatewayError) -> bytes:
        return event(self.error(error), "error")


def _messages(given: object, number: int) -> list[Message]:
    """What one message of Anthropic's means; results of tools in a user's become messages of their own."""
    where = f"messages[{number}]"
    item = fields.as_object(given, where)
    fields.refuse_others(item, where, ("role", "content"))
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant"):
        raise invalid(f"{where}.role is {role!r}: user or assistant", f"{where}.role")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    read = [
        (fields.as_object(block, f"{where}.content[{i}]"), f"{where}.content[{i}]")
        for i, block in enumerate(fields.as_list(blocks, f"{where}.content"))
    ]
    return [_assistant(read)] if role == "assistant" else _user(read)


def _assistant(blocks: list[tuple[Json, str]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for block, where in blocks:
        kind = block.get("type")
        if kind == "text":
            fields.refuse_others(block, where, ("type", "text", *_BLOCK))
            texts.append(fields.as_text(block.get("text"), f"{where}.text"))
        elif kind == "thinking":
            fields.refuse_others(block, where, ("type", "thinking", "signature", *_BLOCK))
            thoughts.append(fields.as_text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            fields.refuse_others(block, where, ("type", "id", "name", "input", "caller", *_BLOCK))
            given = to_json(fields.as_object(block.get("input"), f"{where}.input")).decode()
            calls.append(openai_call(block.get("name"), given, block.get("id"), where))
        elif kind != "redacted_thinking":  # no reply of this gateway has it
            raise invalid(f"{where} has type {kind!r}: text, thinking or tool_use", f"{where}.type")
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: list[tuple[Json, str]]) -> list[Message]:
    results: list[Message] = []
    texts: list[str] = []
    for block, where in blocks:
        kind = block.get("type")
        if kind == "text":
            fields.refuse_others(block, where, ("type", "text", *_BLOCK))
            texts.append(fields.as_text(block.get("text"), f"{where}.text"))
        elif kind == "tool_result":
            fields.refuse_others(block, where, ("type", "tool_use_id", "content", "is_error", *_BLOCK))
            call_id = fields.as_text(block.get("tool_use_id"), f"{where}.tool_use_id")
            content = fields.joined_text(block.get("content"), f"{where}.content", ("text",))
            results.append({"role": "tool", "content": content, "tool_call_id": call_id})
        else:
            raise invalid(f"{where} has type {kind!r}: text or tool_result", f"{where}.type")
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _tool(item: Json, where: str) -> Json:
    if item.get("type") not in (None, "custom"):
        raise invalid(f"{where}.type is {item['type']!r}: only the client's own tools are supported", where)
    fields.refuse_others(item, where, _TOOL)
    return fields.tool_spec(item, where, "input_schema")


def _may_call(choice: object) -> bool:
    kind = None if choice is None else fields.as_object(choice, "tool_choice").get("type")
    if kind in (None, "auto", "none"):
        return kind != "none"
    raise invalid(
        "tool_choice can only be auto or none: a model that samples freely cannot be made to call a tool",
        "tool_choice",
    )


def _head(session: Session, asked: ChatRequest, exchange: Exchange) -> Json:
    name = f"msg_{session.id}_{exchange.index}"
    return {"id": name, "type": "message", "role": "assistant", "model": asked.model}


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
    """A block as it begins, and what is then added to it."""
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": ""},
        ]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    given = to_json(block["input"]).decode()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": given}]


def _usage(shown: ClientReply, output_tokens: int) -> Json:
    return {
        "input_tokens": shown.prompt_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
