"""OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from msgspec import Raw

from hone.policy.gateway.chat_request import ChatRequest, Ending
from hone.policy.gateway.errors import invalid
from hone.policy.gateway.record import Answer
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json, KnownFields
from hone.policy.gateway.wire.format import COMMENT, Format, event
from hone.policy.reply import ToolSpec
from hone.types import Message

_MESSAGE = (
    *("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"),
    *("name", "refusal", "annotations", "cache_control", "provider_specific_fields"),  # no meaning here
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "tool": "tool", "assistant": "assistant"}
_FINISH = {
    Ending.STOP: "stop",
    Ending.STOP_TEXT: "stop",
    Ending.TOOL_CALLS: "tool_calls",
    Ending.LENGTH: "length",
}


class ChatCompletions(Format):
    """`POST /v1/chat/completions`."""

    encoded_field = "messages"
    known_fields = KnownFields(
        read=("messages", "model", "tools", "tool_choice", "stream", "stream_options", "stop"),
        # How replies are drawn is the run's to say, thinking included.
        overridden=(
            *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "parallel_tool_calls"),
            *("reasoning_effort", "reasoning", "enable_thinking", "thinking_budget", "chat_template_kwargs"),
            "verbosity",
        ),
        ignored=(
            *("user", "metadata", "store", "service_tier", "safety_identifier"),
            *("prompt_cache_key", "prompt_cache_retention"),
        ),
        neutral={
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
        },
    )

    def read_messages(self, body: Json, session: Session) -> list[Message]:
        return session.read(fields.as_list(body.get("messages"), "messages"), _message)

    def read_tool(self, item: Json, where: str) -> ToolSpec:
        if item.get("type") != "function":
            raise invalid(
                f"{where}.type is {item.get('type')!r}: only functions are supported", f"{where}.type"
            )
        where = f"{where}.function"
        return fields.tool_spec(fields.as_object(item.get("function"), where), where, "parameters")

    def reply(self, answer: Answer) -> Json:
        shown = answer.shown
        message: Json = {"role": "assistant", "content": shown.content or None, "refusal": None}
        if shown.reasoning:
            message["reasoning_content"] = shown.reasoning
        if shown.calls:
            message["tool_calls"] = list(shown.calls)
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _FINISH[shown.ending],
        }
        return {
            **_head(answer, "chat.completion"),
            "choices": [choice],
            "usage": _usage(answer),
        }

    def events(self, answer: Answer) -> Iterator[bytes]:
        head, shown = _head(answer, "chat.completion.chunk"), answer.shown

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
        if answer.request.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def waiting(self, request: ChatRequest) -> bytes:
        """Return a comment for connections, and an empty chunk for clients that count chunks."""
        head = {"id": "chatcmpl-waiting", "object": "chat.completion.chunk", "created": int(time.time())}
        choice: Json = {"index": 0, "delta": {}, "finish_reason": None}
        return COMMENT + event({**head, "model": request.model, "choices": [choice]})


def _message(encoded: Raw, number: int) -> list[Message]:
    where = f"messages[{number}]"
    item = fields.read_object(encoded, where)
    fields.refuse_others(item, where, _MESSAGE)
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(
            f"{where}.role is {role!r}: system, developer, user, assistant or tool", f"{where}.role"
        )
    content = fields.joined_text(item.get("content"), f"{where}.content", ("text", "refusal"))
    message: Message = {"role": _ROLES[role], "content": content}
    if role == "tool":
        message["tool_call_id"] = fields.as_text(item.get("tool_call_id"), f"{where}.tool_call_id")
    if role != "assistant":
        return [message]
    if reasoning := item.get("reasoning_content") or item.get("reasoning"):
        message["reasoning_content"] = fields.as_text(reasoning, f"{where}.reasoning_content")
    calls: list[Json] = []
    for call, place in fields.as_objects(item.get("tool_calls"), f"{where}.tool_calls"):
        function = fields.as_object(call.get("function"), f"{place}.function")
        calls.append(fields.tool_call(function.get("name"), function.get("arguments"), call.get("id"), place))
    if calls:
        message["tool_calls"] = calls
    return [message]


def _head(answer: Answer, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{answer.session_id}-{answer.exchange.index}",
        "object": kind,
        "created": int(time.time()),
        "model": answer.request.model,
    }


def _usage(answer: Answer) -> Json:
    reply = answer.exchange.reply
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }
