"""The base of the wire formats: reading a request, and writing an event stream."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic_core import to_json

from hone.policy.gateway.chat_request import ChatRequest
from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.record import Answer
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire import fields
from hone.policy.gateway.wire.fields import Json, KnownFields
from hone.policy.reply import ToolSpec
from hone.policy.workers import text_size
from hone.types import Message

COMMENT = b": the reply is being sampled\n\n"


class Format(ABC):
    """A wire format. It has no state: one object serves every session. Errors are OpenAI's by default."""

    known_fields: ClassVar[KnownFields]
    stop_field: ClassVar[str] = "stop"
    encoded_field: ClassVar[str] = ""  # the list whose items `read` gets encoded

    def read(self, body: Json, session: Session) -> ChatRequest:
        """Return the request. Raises GatewayError if it cannot be served as it is meant."""
        overridden, ignored = self.known_fields.sort(body)
        messages = self.read_messages(body, session)
        tools = tuple(self.read_tool(item, at) for item, at in self.tool_items(body))
        calls_allowed = self.may_call(body)
        options = fields.as_object(body.get("stream_options") or {}, "stream_options")
        stop = fields.as_texts(body.get(self.stop_field), self.stop_field)
        tools = tools if calls_allowed else ()
        return ChatRequest(
            messages=messages,
            tools=tools,
            model=fields.as_text(body.get("model") or "", "model"),
            stream=fields.as_flag(body.get("stream"), "stream"),
            stream_usage=fields.as_flag(options.get("include_usage"), "stream_options.include_usage"),
            stop=tuple(text for text in stop if text),
            calls_allowed=calls_allowed,
            overridden=overridden,
            ignored=ignored,
            characters=text_size(messages, tools, limit=sys.maxsize),
            body=body,
        )

    @abstractmethod
    def read_messages(self, body: Json, session: Session) -> list[Message]: ...

    def tool_items(self, body: Json) -> Iterator[tuple[Json, str]]:
        """Yield each item that `read_tool` reads, and its place."""
        return fields.as_objects(body.get("tools"), "tools")

    @abstractmethod
    def read_tool(self, item: Json, where: str) -> ToolSpec: ...

    def may_call(self, body: Json) -> bool:
        """Return whether the request lets the model call tools. Raises GatewayError if it forces a call."""
        return fields.may_call(body.get("tool_choice"))

    @abstractmethod
    def reply(self, answer: Answer) -> Json:
        """Return the whole reply. The same exchange has the same ids, however often it is requested."""

    @abstractmethod
    def events(self, answer: Answer) -> Iterator[bytes]:
        """Yield the reply as the events of a stream, the end included."""

    def waiting(self, request: ChatRequest) -> bytes:
        """Return a keep-alive event for a stream whose reply is still being sampled."""
        return COMMENT

    def error(self, error: GatewayError) -> Json:
        code = error.problem.value
        detail = {"message": str(error), "type": error.openai_type, "param": error.param, "code": code}
        return {"error": detail}

    def error_event(self, error: GatewayError) -> bytes:
        """Return the last event of a stream that has begun and gets no reply."""
        return event(self.error(error))


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Return one event of a stream (server-sent events)."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"
