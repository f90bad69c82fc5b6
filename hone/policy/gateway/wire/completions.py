"""OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hone.policy.gateway.chat_request import ChatRequest, ClientReply, Ending
from hone.policy.gateway.errors import GatewayError, Problem, invalid
from hone.policy.gateway.record import Exchange
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json
from hone.policy.gateway.wire.format import COMMENT, event
from hone.types import Message

_READ = ("messages", "model", "tools", "tool_choice", "stream", "stream_options", "stop")
# How replies are drawn is the run's to say, thinking included.
_OVERRIDDEN = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "parallel_tool_calls", "verbosity"),
    *("reasoning_effort", "reasoning", "enable_thinking", "thinking_budget", "chat_template_kwargs"),
)
_IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention"),
)
_NEUTRAL = {
    "n": fields.is_one_of(1),
    "logprobs": fields.is_one_of(False),
    "top_logprobs": fields.is_one_of(0),
    "logit_bias": fields.is_empty,
    "response_format": fields.is_one_of({"type": "text"}),
    "modalities": fields.is_one_of(["text"]),
    "audio": fields.is_empty,
    "prediction": fields.is_empty,
    "functions": fields.is_empty,
    "function_call": fields.is_one_of("auto", "none"),
    "web_search_options": fields.is_one_of(),
}
_MESSAGE = (
    *("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"),
    *("name", "refusal", "annotations", "cache_control", "provider_specific_fields"),  # no meaning here
)
_TEXT = ("text", "refusal")
_FINISH = {
    Ending.STOP: "stop",
    Ending.STOP_TEXT: "stop",
    Ending.TOOL_CALLS: "tool_calls",
    Ending.LENGTH: "length",
}


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    def read(self, body: Json, session: Session) -> ChatRequest:
        overridden, ignored = fields.sort_fields(
            body, read=_READ, overridden=_OVERRIDDEN, ignored=_IGNORED, neutral=_NEUTRAL
        )
        messages = session.read(fields.as_list(body.get("messages"), "messages"), _message)
        tools = tuple(
            _tool(fields.as_object(item, f"tools[{i}]"), f"tools[{i}]")
            for i, item in enumerate(fields.as_list(body.get("tools") or [], "tools"))
        )
        calls_allowed = may_call(body.get("tool_choice"))
        options = fields.as_object(body.get("stream_options") or {}, "stream_options")
        return ChatRequest(
            messages=messages,
            tools=tools if calls_allowed else (),
            model=fields.as_text(body.get("model") or "", "model"),
            stream=fields.as_flag(body.get("stream"), "stream"),
            usage=fields.as_flag(options.get("include_usage"), "stream_options.include_usage"),
            stop=tuple(text for text in fields.as_texts(body.get("stop"), "stop") if text),
            calls_allowed=calls_allowed,
            overridden=overridden,
            ignored=ignored,
            body=body,
        )

    def reply(self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply) -> Json:
        message: Json = {"role": "assistant", "content": shown.content or None, "refusal": None}
        if shown.reasoning:
            message["reasoning_content"] = shown.reasoning
        if shown.calls:
            message["tool_calls"] = list(shown.calls)
        choice: Json = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _FINISH[shown.ending]
        return {
            **_head(session, asked, exchange, "chat.completion"),
            "choices": [choice],
            "usage": _usage(shown),
        }

    def events(
        self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply
    ) -> Iterator[bytes]:
        head = _head(session, asked, exchange, "chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        if shown.reasoning:
            yield chunk({"reasoning_content": shown.reasoning})
        if shown.content:
            yield chunk({"content": shown.content})
        for index, call in enumerate(shown.calls):
            function = {"name": call["function"]["name"], "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, **call, "function": function}]})
            arguments = {"arguments": call["function"]["arguments"]}
            yield chunk({"tool_calls": [{"index": index, "function": arguments}]})
        yield chunk({}, _FINISH[shown.ending])
        if asked.usage:
            yield event({**head, "choices": [], "usage": _usage(shown)})
        yield b"data: [DONE]\n\n"

    def waiting(self, asked: ChatRequest) -> bytes:
        """A comment for connections, and a chunk that says nothing for clients that count chunks."""
        head = {"id": "chatcmpl-waiting", "object": "chat.completion.chunk", "created": int(time.time())}
        choice: Json = {"index": 0, "delta": {}, "finish_reason": None}
        return COMMENT + event({**head, "model": asked.model, "choices": [choice]})

    def error(self, error: GatewayError) -> Json:
        return openai_error(error)

    def error_event(self, error: GatewayError) -> bytes:
        return event(openai_error(error))


def openai_error(error: GatewayError) -> Json:
    kinds = {
        Problem.ENGINE: "server_error",
        Problem.DEFECT: "server_error",
        Problem.LIMIT: "permission_error",
        Problem.OBSERVER: "permission_error",
        Problem.UNAUTHORIZED: "authentication_error",
    }
    kind = kinds.get(error.problem, "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.problem.value}}


def openai_call(name: object, arguments: object, call_id: object, where: str) -> Json:
    """A call that the assistant made, as clients hand it back; its arguments need not be JSON."""
    function = {
        "name": fields.as_text(name, f"{where}.name"),
        "arguments": fields.as_text(arguments or "", f"{where}.arguments"),
    }
    return {"id": fields.as_text(call_id or "", f"{where}.id"), "type": "function", "function": function}


def _message(given: object, number: int) -> list[Message]:
    where = f"messages[{number}]"
    return [_read_message(fields.as_object(given, where), where)]


def _read_message(item: Json, where: str) -> Message:
    fields.refuse_others(item, where, _MESSAGE)
    role = item.get("role")
    content = fields.joined_text(item.get("content"), f"{where}.content", _TEXT)
    if role in ("system", "developer"):
        return {"role": "system", "content": content}
    if role == "user":
        return {"role": "user", "content": content}
    if role == "tool":
        call_id = fields.as_text(item.get("tool_call_id"), f"{where}.tool_call_id")
        return {"role": "tool", "content": content, "tool_call_id": call_id}
    if role != "assistant":
        raise invalid(
            f"{where}.role is {role!r}: system, developer, user, assistant or tool", f"{where}.role"
        )
    message: Message = {"role": "assistant", "content": content}
    reasoning = item.get("reasoning_content") or item.get("reasoning")
    if reasoning:
        message["reasoning_content"] = fields.as_text(reasoning, f"{where}.reasoning_content")
    calls = fields.as_list(item.get("tool_calls") or [], f"{where}.tool_calls")
    if calls:
        message["tool_calls"] = [
            _call(fields.as_object(call, f"{where}.tool_calls[{i}]"), f"{where}.tool_calls[{i}]")
            for i, call in enumerate(calls)
        ]
    return message


def _call(item: Json, where: str) -> Json:
    function = fields.as_object(item.get("function"), f"{where}.function")
    return openai_call(function.get("name"), function.get("arguments"), item.get("id"), where)


def _tool(item: Json, where: str) -> Json:
    if item.get("type") != "function":
        raise invalid(f"{where}.type is {item.get('type')!r}: only functions are supported", f"{where}.type")
    return fields.tool_spec(
        fields.as_object(item.get("function"), f"{where}.function"), f"{where}.function", "parameters"
    )


def may_call(choice: object) -> bool:
    """Whether a `tool_choice` lets the model call tools. Raises GatewayError for what cannot be enforced."""
    if choice in (None, "auto", "none"):
        return choice != "none"
    raise invalid(
        "tool_choice can only be 'auto' or 'none': a model that samples freely cannot be made to call a tool",
        "tool_choice",
    )


def _head(session: Session, asked: ChatRequest, exchange: Exchange, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{session.id}-{exchange.index}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
    }


def _usage(shown: ClientReply) -> Json:
    return {
        "prompt_tokens": shown.prompt_tokens,
        "completion_tokens": shown.sampled_tokens,
        "total_tokens": shown.prompt_tokens + shown.sampled_tokens,
    }
