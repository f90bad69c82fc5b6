"""Conversations without the reasoning of earlier replies."""

from __future__ import annotations

from collections.abc import Sequence

from hone.types import Message


def drop_thinking(messages: Sequence[Message]) -> list[Message]:
    """The same conversation; of all replies but the newest, the reasoning is left out.

    A reply whose `reasoning_content` is "" stands for its tokens without those of its reasoning; one without
    the key would stand for all of them.
    """
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    old = set(replies[:-1])
    return [
        {**message, "reasoning_content": ""} if index in old else message
        for index, message in enumerate(messages)
    ]
