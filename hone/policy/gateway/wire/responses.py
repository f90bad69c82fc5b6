"""OpenAI responses."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hone.policy.gateway.chat_request import ChatRequest, ClientReply, Ending
from hone.policy.gateway.errors import GatewayError, invalid
from hone.policy.gateway.record import Exchange
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.completions import may_call, openai_call, openai_error
from hone.policy.gateway.wire.fields import Json
from hone.policy.gateway.wire.format import COMMENT, event
from hone.types import Message

_READ = ("input", "instructions", "model", "tools", "tool_choice", "stream", "previous_response_id")
_OVERRIDDEN = (
    *("temperature", "top_p", "max_output_tokens", "reasoning", "parallel_tool_calls", "seed"),
    *("presence_penalty", "frequency_penalty", "max_tool_calls"),
)
_IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "client_metadata"),
    *("prompt_cache_key", "prompt_cache_retention", "stream_options"),
)
_NEUTRAL = {
    "include": fields.is_one_of([], ["reasoning.encrypted_content"]),
    "truncation": fields.is_one_of("disabled"),
    "background": fields.is_empty,
    "conversation": fields.is_empty,
    "prompt": fields.is_empty,
    "top_logprobs": fields.is_one_of(0),
    "context_management": fields.is_empty,
    "text": fields.is_plain_text,
}
_TOOL = ("type", "name", "description", "parameters", "strict")
_TEXT = ("input_text", "output_text", "text", "refusal")


class Responses:
    """`POST /v1/responses`. A response is continued from the session's own record."""

    def read(self, body: Json, session: Session) -> ChatRequest:
        overridden, ignored = fields.sort_fields(
            body, read=_READ, overridden=_OVERRIDDEN, ignored=_IGNORED, neutral=_NEUTRAL
        )
        instructions = fields.as_text(body.get("instructions") or "", "instructions")
        messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        messages += _previous(body.get("previous_response_id"), session)
        messages += _input(body.get("input"))
        tools = tuple(
            _tool(fields.as_object(item, f"tools[{i}]"), f"tools[{i}]")
            for i, item in enumerate(fields.as_list(body.get("tools") or [], "tools"))
        )
        calls_allowed = may_call(body.get("tool_choice"))
        return ChatRequest(
            messages=messages,
            tools=tools if calls_allowed else (),
            model=fields.as_text(body.get("model") or "", "model"),
            stream=fields.as_flag(body.get("stream"), "stream"),
            calls_allowed=calls_allowed,
            overridden=overridden,
            ignored=ignored,
            instructed=bool(instructions),
            body=body,
        )

    def reply(self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply) -> Json:
        cut = shown.ending is Ending.LENGTH
        return {
            **_head(session, asked, exchange, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(session, exchange, shown),
            "usage": {
                "input_tokens": shown.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": shown.sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": shown.prompt_tokens + shown.sampled_tokens,
            },
        }

    def events(
        self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply
    ) -> Iterator[bytes]:
        whole = self.reply(session, asked, exchange, shown)
        begun = _head(session, asked, exchange, "in_progress")
        steps: list[tuple[str, Json]] = [
            ("response.created", {"response": begun}),
            ("response.in_progress", {"response": begun}),
        ]
        for index, item in enumerate(whole["output"]):
            steps += _unfolded(item, index)
        steps.append((f"response.{whole['status']}", {"response": whole}))
        for number, (name, data) in enumerate(steps):
            yield event({"type": name, "sequence_number": number, **data}, name)

    def waiting(self, asked: ChatRequest) -> bytes:
        return COMMENT

    def error(self, error: GatewayError) -> Json:
        return openai_error(error)

    def error_event(self, error: GatewayError) -> bytes:
        detail = openai_error(error)["error"]
        data = {"code": detail["code"], "message": detail["message"], "param": detail["param"]}
        return event({"type": "error", "sequence_number": 0, **data}, "error")


def _previous(name: object, session: Session) -> list[Message]:
    """The conversation up to and with a response; its instructions are not carried over."""
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
    for i, entry in enumerate(fields.as_list([] if value is None else value, "input")):
        item, where = fields.as_object(entry, f"input[{i}]"), f"input[{i}]"
        kind = item.get("type", "message")
        if kind in ("reasoning", "function_call") or (kind == "message" and item.get("role") == "assistant"):
            if open_message is None:
                open_message = {"role": "assistant", "content": ""}
                messages.append(open_message)
            _add(open_message, kind, item, where)
        else:
            open_message = None
            messages.append(_message(kind, item, where))
    return [
        message for message in messages if message.keys() != {"role", "content"} or not _is_hollow(message)
    ]


def _is_hollow(message: Message) -> bool:
    """Whether it is an assistant's message that only an item without any text made."""
    return message["role"] == "assistant" and not message["content"]


def _add(message: Message, kind: str, item: Json, where: str) -> None:
    """Items that the assistant said one after the other are one message."""
    if kind == "function_call":
        call = openai_call(item.get("name"), item.get("arguments"), item.get("call_id"), where)
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


def _tool(item: Json, where: str) -> Json:
    if item.get("type") != "function":
        raise invalid(f"{where}.type is {item.get('type')!r}: only functions are supported", f"{where}.type")
    fields.refuse_others(item, where, _TOOL)
    return fields.tool_spec(item, where, "parameters")


def _head(session: Session, asked: ChatRequest, exchange: Exchange, status: str) -> Json:
    """A response without its output."""
    return {
        "id": f"resp_{session.id}_{exchange.index}_{'i' if asked.instructed else 'n'}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.body.get("instructions"),
        "metadata": {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": asked.body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": asked.body.get("tool_choice") or "auto",
        "tools": asked.body.get("tools") or [],
        "top_p": None,
        "usage": None,
    }


def _items(session: Session, exchange: Exchange, shown: ClientReply) -> list[Json]:
    name = f"{session.id}_{exchange.index}"
    items: list[Json] = []
    if shown.reasoning:
        thought = {"type": "reasoning_text", "text": shown.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [thought]})
    if shown.content or not shown.calls:
        text: Json = {"type": "output_text", "text": shown.content, "annotations": []}
        said: Json = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": [text]}
        items.append({**said, "status": "incomplete" if shown.ending is Ending.LENGTH else "completed"})
    for number, call in enumerate(shown.calls):
        function = call["function"]
        made = {"name": function["name"], "arguments": function["arguments"], "call_id": call["id"]}
        items.append({"type": "function_call", "id": f"fc_{name}_{number}", **made, "status": "completed"})
    return items


def _unfolded(item: Json, index: int) -> list[tuple[str, Json]]:
    """The events that bring one item of the output."""
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
