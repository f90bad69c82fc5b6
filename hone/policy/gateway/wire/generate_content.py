"""Google's generateContent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec import Raw
from pydantic_core import from_json, to_json

from hone.policy.gateway.chat_request import ChatRequest, Ending
from hone.policy.gateway.errors import GatewayError, Problem, invalid
from hone.policy.gateway.record import Answer
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json, KnownFields
from hone.policy.gateway.wire.format import Format, event
from hone.policy.reply import ToolSpec
from hone.types import Message

_TOOL = ("name", "description", "parameters", "parametersJsonSchema")
_RESULT_TOOL = ("response", "responseJsonSchema", "behavior")  # no meaning here
_PARTS = {"user": ("text", "functionResponse"), "model": ("text", "functionCall")}  # by role
_EVERY_PART = ("thought", "thoughtSignature", "partMetadata")
_FINISH = {
    Ending.STOP: "STOP",
    Ending.STOP_TEXT: "STOP",
    Ending.TOOL_CALLS: "STOP",
    Ending.LENGTH: "MAX_TOKENS",
}


class GenerateContent(Format):
    """`POST /v1beta/models/MODEL:generateContent`, or with `stream` `:streamGenerateContent?alt=sse`.

    The body that `read` gets has the MODEL of the path as its field `model`.
    """

    stop_field = "stopSequences"
    encoded_field = "contents"
    known_fields = KnownFields(
        read=(
            *("contents", "model", "systemInstruction", "tools", "toolConfig", "generationConfig"),
            "stopSequences",
        ),
        overridden=(
            *("temperature", "topP", "topK", "maxOutputTokens", "seed", "thinkingConfig"),
            *("presencePenalty", "frequencyPenalty"),
        ),
        ignored=("safetySettings", "labels"),
        neutral={
            "cachedContent": fields.is_empty,
            "candidateCount": fields.is_one_of(1),
            "responseMimeType": fields.is_one_of("text/plain"),
            "responseSchema": fields.is_empty,
            "responseJsonSchema": fields.is_empty,
            "responseModalities": fields.is_one_of(["TEXT"]),
            "responseLogprobs": fields.is_one_of(False),
            "logprobs": fields.is_one_of(0),
        },
    )

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream

    def read(self, body: Json, session: Session) -> ChatRequest:
        config = fields.as_object(body.get("generationConfig") or {}, "generationConfig")
        return dataclasses.replace(super().read({**body, **config}, session), stream=self._stream)

    def read_messages(self, body: Json, session: Session) -> list[Message]:
        system = fields.as_object(body.get("systemInstruction") or {}, "systemInstruction")
        fields.refuse_others(system, "systemInstruction", ("role", "parts"))
        texts = [
            fields.as_text(part.get("text"), f"{at}.text")
            for part, at in fields.as_objects(system.get("parts"), "systemInstruction.parts")
        ]
        opening: list[Message] = [{"role": "system", "content": "\n".join(texts)}] if any(texts) else []
        return session.read(fields.as_list(body.get("contents"), "contents"), _messages, opening)

    def tool_items(self, body: Json) -> Iterator[tuple[Json, str]]:
        for tool, at in fields.as_objects(body.get("tools"), "tools"):
            fields.refuse_others(tool, at, ("functionDeclarations",))
            yield from fields.as_objects(tool.get("functionDeclarations"), f"{at}.functionDeclarations")

    def read_tool(self, item: Json, where: str) -> ToolSpec:
        fields.refuse_others(item, where, (*_TOOL, *_RESULT_TOOL))
        return fields.tool_spec(
            item, where, "parameters" if item.get("parametersJsonSchema") is None else "parametersJsonSchema"
        )

    def may_call(self, body: Json) -> bool:
        where = "toolConfig.functionCallingConfig"
        config = fields.as_object(body.get("toolConfig") or {}, "toolConfig")
        mode = fields.as_object(config.get("functionCallingConfig") or {}, where).get("mode")
        if mode not in (None, "AUTO", "NONE"):
            raise invalid(
                f"{where}.mode can only be AUTO or NONE: a model that samples freely cannot be made to call "
                "a tool",
                f"{where}.mode",
            )
        return mode != "NONE"

    def reply(self, answer: Answer) -> Json:
        reply = answer.exchange.reply
        candidate = {
            "content": {"role": "model", "parts": _parts(answer)},
            "finishReason": _FINISH[answer.shown.ending],
            "index": 0,
        }
        usage = {
            "promptTokenCount": reply.prompt_tokens,
            "candidatesTokenCount": reply.sampled_tokens,
            "totalTokenCount": reply.prompt_tokens + reply.sampled_tokens,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": answer.request.model,
            "responseId": f"{answer.session_id}-{answer.exchange.index}",
        }

    def events(self, answer: Answer) -> Iterator[bytes]:
        yield event(self.reply(answer))

    def waiting(self, request: ChatRequest) -> bytes:
        """Return an event without a candidate: Google's JavaScript client reads no comments."""
        return event({"candidates": [], "modelVersion": request.model})

    def error(self, error: GatewayError) -> Json:
        message = str(error)
        if error.problem is Problem.TOO_LONG:  # the words of the API
            message = (
                f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens allowed "
                f"({error.context_tokens})."
            )
        return {"error": {"code": error.status, "message": message, "status": error.google_status}}

    def error_event(self, error: GatewayError) -> bytes:
        """Return the error as JSON that is no event: so Google's clients recognise it."""
        return to_json(self.error(error))


def _messages(encoded: Raw, number: int) -> list[Message]:
    """Return the messages of one content; function responses become messages of their own."""
    where = f"contents[{number}]"
    item = fields.read_object(encoded, where)
    fields.refuse_others(item, where, ("role", "parts"))
    role = "user" if item.get("role") is None else item["role"]
    if not isinstance(role, str) or role not in _PARTS:
        raise invalid(f"{where}.role is {role!r}: user or model", f"{where}.role")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    results: list[Message] = []
    for part, at in fields.as_objects(item.get("parts"), f"{where}.parts"):
        kind = next((kind for kind in _PARTS[role] if part.get(kind) is not None), None)
        if kind is None:
            raise invalid(f"{at} must have a {' or a '.join(_PARTS[role])}", at)
        fields.refuse_others(part, at, (kind, *_EVERY_PART))
        if kind == "text":
            is_thought = fields.as_flag(part.get("thought"), f"{at}.thought") and role == "model"
            (thoughts if is_thought else texts).append(fields.as_text(part["text"], f"{at}.text"))
            continue
        at = f"{at}.{kind}"
        given = fields.as_object(part[kind], at)
        if kind == "functionCall":
            fields.refuse_others(given, at, ("id", "name", "args"))
            arguments = to_json(fields.as_object(given.get("args") or {}, f"{at}.args")).decode()
            calls.append(fields.tool_call(given.get("name"), arguments, given.get("id"), at))
        else:
            fields.refuse_others(given, at, ("id", "name", "response", "willContinue", "scheduling"))
            call_id = fields.as_text(given.get("id") or "", f"{at}.id")
            results.append({"role": "tool", "content": _result(given, at), "tool_call_id": call_id})
    content = "\n".join(texts)
    if role == "user":
        return [*results, {"role": "user", "content": content}] if texts or not results else results
    message: Message = {"role": "assistant", "content": content}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _result(given: Json, where: str) -> str:
    """Return the text of a function response: its `output` if that is a text and all it has, else JSON."""
    response = fields.as_object(given.get("response") or {}, f"{where}.response")
    output = response.get("output")
    return output if isinstance(output, str) and len(response) == 1 else to_json(response).decode()


def _parts(answer: Answer) -> list[Json]:
    shown = answer.shown
    parts: list[Json] = []
    if shown.reasoning:
        parts.append({"text": shown.reasoning, "thought": True})
    if shown.content or not shown.calls:
        parts.append({"text": shown.content})
    for call in shown.calls:
        function = call["function"]
        made = {"id": call["id"], "name": function["name"], "args": from_json(function["arguments"])}
        parts.append({"functionCall": made})
    return parts
