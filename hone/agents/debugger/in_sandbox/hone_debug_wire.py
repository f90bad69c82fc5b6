"""The protocol between the server and its programs: one JSON object per line, and a signal; capped output."""

import json
import signal
from typing import Any

MESSAGE_MAX = 8 << 20  # bytes
INTERRUPT = signal.SIGRTMIN + 10  # stops a program under the debugger
CHANNEL = "HONE_DEBUG_CHANNEL"  # environment variable: the descriptor of a program's channel
KEPT = 10_000  # bytes kept for one reply, half of them from the end


class Broken(Exception):
    """The stream holds something that is not a message; nothing after it can be parsed."""


def pack(message: "dict[str, Any]") -> bytes:
    line = json.dumps(message).encode() + b"\n"
    if len(line) > MESSAGE_MAX:
        raise ValueError(f"the message has {len(line)} bytes; the limit is {MESSAGE_MAX}")
    return line


class Messages:
    """Parses messages from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> "list[dict[str, Any]]":
        """Return the messages that `data` completes. Raises Broken."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > MESSAGE_MAX:
            raise Broken(f"a message of more than {MESSAGE_MAX} bytes")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise Broken(str(error)) from None
        if not all(isinstance(message, dict) for message in messages):
            raise Broken("a message that is not an object")
        return messages


class Output:
    """Collects bytes up to KEPT."""

    def __init__(self) -> None:
        self.total = 0
        self.head, self.tail = b"", b""

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = KEPT // 2 - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-KEPT // 2 :] if room < len(data) else self.tail

    def take(self) -> str:
        """Return the output since the last call as text, with a note on omitted bytes."""
        omitted = self.total - len(self.head) - len(self.tail)
        note = f"\n[... {omitted} bytes omitted ...]\n".encode() if omitted else b""
        text = (self.head + note + self.tail).decode("utf-8", "replace")
        self.total, self.head, self.tail = 0, b"", b""
        return text
