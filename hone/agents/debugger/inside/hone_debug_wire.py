"""Frames: the length of the body (4 bytes, big-endian), then the body, JSON in UTF-8."""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct("!I")
FRAME_MAX = 8 << 20  # bytes of one body


class Broken(Exception):
    """What arrived is no frame; nothing after it can be read."""


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > FRAME_MAX:
        raise ValueError(f"a message of {len(body)} bytes is longer than a frame may be")
    return HEADER.pack(len(body)) + body


class Frames:
    """Messages out of a stream of bytes that arrives in pieces."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that `data` completes. Raises Broken."""
        self.rest += data
        found = []
        while len(self.rest) >= HEADER.size:
            (size,) = HEADER.unpack_from(self.rest)
            if size > FRAME_MAX:
                raise Broken(f"a frame of {size} bytes")
            end = HEADER.size + size
            if len(self.rest) < end:
                break
            try:
                message = json.loads(self.rest[HEADER.size : end].decode())
            except ValueError as error:
                raise Broken(str(error)) from None
            if not isinstance(message, dict):
                raise Broken("a message that is no object")
            found.append(message)
            self.rest = self.rest[end:]
        return found
