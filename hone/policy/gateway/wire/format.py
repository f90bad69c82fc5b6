"""What the server asks of a wire format, and how an event stream is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from pydantic_core import to_json

from hone.policy.gateway.chat_request import ChatRequest, ClientReply
from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.record import Exchange
from hone.policy.gateway.session import Session


class Format(Protocol):
    """Stateless; one object serves every session."""

    def read(self, body: dict[str, Any], session: Session) -> ChatRequest:
        """Raises GatewayError for what cannot be served as it was meant."""
        ...

    def reply(
        self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply
    ) -> dict[str, Any]:
        """The whole reply. The same exchange has the same ids, however often it is asked for."""
        ...

    def events(
        self, session: Session, asked: ChatRequest, exchange: Exchange, shown: ClientReply
    ) -> Iterator[bytes]:
        """The reply as the events of a stream, the end included."""
        ...

    def waiting(self, asked: ChatRequest) -> bytes:
        """What keeps a stream alive before the reply is there."""
        ...

    def error(self, error: GatewayError) -> dict[str, Any]: ...

    def error_event(self, error: GatewayError) -> bytes:
        """The end of a stream that has begun and gets no reply."""
        ...


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event of a stream (server-sent events)."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


COMMENT = b": the reply is being sampled\n\n"
