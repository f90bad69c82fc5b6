"""Capped output: the head and the tail are kept."""

from __future__ import annotations

KEPT = 10_000  # bytes kept for one reply, half of them from the end


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
