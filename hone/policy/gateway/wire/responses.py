"""OpenAI responses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hone.policy.gateway.chat_request import Ending
from hone.policy.gateway.errors import GatewayError, invalid
from hone.policy.gateway.record import Answer
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json, KnownFields
from hone.policy.gateway.wire.format import Format, event
from hone.policy.reply import ToolSpec
from hone.types import Message

_TOOL = ("type", "name", "description", "parameters", "strict")
_TEXT = ("input_text", "output_text", "text", "refusal")


def _is_plain_text(value: Any) -> bool:
    """Return whether the field `text` requests no format."""
    given = fields.as_object(value, "text")
    return given.get("format") in (None, {"type": "text"}) and given.keys() <= {"format", "verbosity"}


class Responses(Format):
    """`POST /v1/responses`. A response is continued from the session's own record."""

    known_fields = KnownFields(
        read=("input", "instructions", "model", "tools", "tool_choice", "stream", "previous_response_id"),
        overridden=(
            *("temperature", "top_p", "max_output_tokens", "reasoning", "parallel_tool_calls", "seed"),
            *("presence_penalty", "frequency_penalty", "max_tool_calls"),
        ),
        ignored=(
            *("user", "metadata", "store", "service_tier", "safety_identifier", "client_metadata"),
            *("prompt_cache_key", "prompt_cache_retention", "stream_options"),
        ),
        neutral={
            "include": fields.is_one_of([], ["reasoning.encrypted_content"]),
            "truncation": fields.is_one_of("disabled"),
            "background": fields.is_empty,
            "conversation": fields.is_empty,
            "prompt": fields.is_empty,
            "top_logprobs": fields.is_one_of(0),
            "context_management": fields.is_empty,
            "text": _is_plain_text,
        },
    )

    def read_messages(self, body: Json, session: Session) -> list[Message]:
        instructions = fields.as_text(body.get("instructions") or "", "instructions")
        opening: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        return [*opening, *_previous(body.get("previous_response_id"), session), *_input(body.get("input"))]

    def read_tool(self, item: Json, where: str) -> ToolSpec:
        if item.get("type") != "function":
            raise invalid(
                f"{where}.type is {item.get('type')!r}: only functions are supported", f"{where}.type"
            )
        fields.refuse_others(item, where, _TOOL)
        return fields.tool_spec(item, where, "parameters")

    def reply(self, answer: Answer) -> Json:
        reply, cut = answer.exchange.reply, answer.shown.ending is Ending.LENGTH
        return {
            **_head(answer, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(answer),
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": reply.sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
            },
        }

    def events(self, answer: Answer) -> Iterator[bytes]:
        whole = self.reply(answer)
        begun = _head(answer, "in_progress")
        steps: list[tuple[str, Json]] = [
            ("response.created", {"response": begun}),
            ("response.in_progress", {"response": begun}),
        ]
        for index, item in enumerate(whole["output"]):
            steps += _unfolded(item, index)
        steps.append((f"response.{whole['status']}", {"response": whole}))
        for number, (name, data) in enumerate(steps):
            yield event({"type": name, "sequence_number": number, **data}, name)

    def error_event(self, error: GatewayError) -> bytes:
        detail = self.error(error)["error"]
        data = {"code": detail["code"], "message": detail["message"], "param": detail["param"]}
        return event({"type": "error", "sequence_number": 0, **data}, "error")


def _previous(name: object, session: Session) -> list[Message]:
    """Return the conversation up to and with a response; its instructions are not carried over."""
    if name is None:
        return []
    parts = fields.as_text(name, "previous_response_id").split("_")
    exchange = None
    if len(parts) == 4 and parts[:2] == ["resp", session.id] and parts[2].isdecimal():
        exchange = session.exchange(int(parts[2][:9]))
    if exchange is None:
        raise invalid(f"this session has no response {name!r}", "previous_response_id")
    messages = exchange.node.messages()
    return messages[1:] if parts[3] == "i" else messages


def _input(value: object) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    messages: list[Message] = []
    open_message: Message | None = None  # the assistant's, which later items may still add to
    for item, where in fields.as_objects(value, "input"):
        kind = item.get("type", "message")
        if kind in ("reasoning", "function_call") or (kind == "message" and item.get("role") == "assistant"):
            if open_message is None:
                open_message = {"role": "assistant", "content": ""}
                messages.append(open_message)
            _add(open_message, kind, item, where)
        else:
            open_message = None
            messages.append(_message(kind, item, where))
    return [message for message in messages if message != {"role": "assistant", "content": ""}]


def _add(message: Message, kind: str, item: Json, where: str) -> None:
    """Add an item to the assistant's message; consecutive items of the assistant are one message."""
    if kind == "function_call":
        call = fields.tool_call(item.get("name"), item.get("arguments"), item.get("call_id"), where)
        message.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        text = fields.joined_text(item.get("content"), f"{where}.content", ("reasoning_text",))
        if text:
            message["reasoning_content"] = "\n".join(filter(None, (message.get("reasoning_content"), text)))
    else:
        text = fields.joined_text(item.get("content"), f"{where}.content", _TEXT)
        message["content"] = "\n".join(filter(None, (message["content"], text)))


def _message(kind: object, item: Json, where: str) -> Message:
    if kind == "function_call_output":
        return {
            "role": "tool",
            "content": fields.joined_text(item.get("output"), f"{where}.output", _TEXT),
            "tool_call_id": fields.as_text(item.get("call_id"), f"{where}.call_id"),
        }
    if kind != "message":
        raise invalid(
            f"{where}.type is {kind!r}: message, reasoning, function_call or function_call_output", where
        )
    role = item.get("role")
    if role not in ("user", "system", "developer"):
        raise invalid(f"{where}.role is {role!r}: user, assistant, system or developer", where)
    content = fields.joined_text(item.get("content"), f"{where}.content", _TEXT)
    return {"role": "user" if role == "user" else "system", "content": content}


def _head(answer: Answer, status: str) -> Json:
    """Return a response without its output."""
    request = answer.request
    instructed = "i" if request.body.get("instructions") else "n"  # whether its first message is instructions
    return {
        "id": f"resp_{answer.session_id}_{answer.exchange.index}_{instructed}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": request.body.get("instructions"),
        "metadata": {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": request.body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": request.body.get("tool_choice") or "auto",
        "tools": request.body.get("tools") or [],
        "top_p": None,
        "usage": None,
    }


def _items(answer: Answer) -> list[Json]:
    name, shown = f"{answer.session_id}_{answer.exchange.index}", answer.shown
    items: list[Json] = []
    if shown.reasoning:
        thought = {"type": "reasoning_text", "text": shown.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [thought]})
    if shown.content or not shown.calls:
        text: Json = {"type": "output_text", "text": shown.content, "annotations": []}
        said: Json = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": [text]}
        items.append({**said, "status": "incomplete" if shown.ending is Ending.LENGTH else "completed"})
    for number, call in enumerate(shown.calls):
        made = {**call["function"], "call_id": call["id"]}
        items.append({"type": "function_call", "id": f"fc_{name}_{number}", **made, "status": "completed"})
    return items


def _unfolded(item: Json, index: int) -> list[tuple[str, Json]]:
    """Return the events that bring one item of the output."""
    at: Json = {"item_id": item["id"], "output_index": index}
    empty = {**item, "status": "in_progress"}
    if item["type"] == "function_call":
        arguments = item["arguments"]
        empty["arguments"] = ""
        middle = [
            ("response.function_call_arguments.delta", {**at, "delta": arguments}),
            ("response.function_call_arguments.done", {**at, "name": item["name"], "arguments": arguments}),
        ]
    else:
        part = item["content"][0]
        kind = "reasoning_text" if part["type"] == "reasoning_text" else "output_text"
        more: Json = {} if kind == "reasoning_text" else {"logprobs": []}
        at["content_index"] = 0
        empty["content"] = []
        middle = [
            ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
            (f"response.{kind}.delta", {**at, "delta": part["text"], **more}),
            (f"response.{kind}.done", {**at, "text": part["text"], **more}),
            ("response.content_part.done", {**at, "part": part}),
        ]
    return [
        ("response.output_item.added", {"output_index": index, "item": empty}),
        *middle,
        ("response.output_item.done", {"output_index": index, "item": item}),
    ]
