"""Why a call began a new branch of its token tree."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hone.policy.places import Place, Places, Walk
from hone.policy.reply import Purpose
from hone.types import Message


class Fork(StrEnum):
    """Why a prompt does not continue the tip of its conversation."""

    RETRY = "retry"  # the same messages were asked again
    TEMPLATE = "template"  # the messages only grew, but the chat template renders the past differently
    SIDE = "side"  # a side call begins a branch of its own, or the conversation goes on beside one
    THINKING = "thinking"  # the reasoning of earlier replies was left out
    COMPACTED = "compacted"  # earlier messages were dropped, or replaced by a shorter account of them
    REWRITTEN = "rewritten"  # history was changed in any other way, the tools included


def reason(
    messages: Sequence[Message], walk: Walk, asked: Place, places: Places, tip: Place | None, purpose: Purpose
) -> Fork:
    """Why `messages` fork the tree, where they do.

    `walk` is their longest known beginning, `asked` their own place, `tip` the main line's last reply.
    """
    if asked.answered:
        return Fork.RETRY
    reply = walk.reply
    if reply is not None and all(m["role"] != "assistant" for m in messages[reply.depth :]):
        if not reply.followers:
            return Fork.TEMPLATE
        if purpose is Purpose.MAIN and reply.followers == {Purpose.SIDE}:
            return Fork.SIDE
    if purpose is Purpose.SIDE:
        return Fork.SIDE
    if walk.dropped:
        return Fork.THINKING
    return _rewrite(messages, walk, places, tip)


def _rewrite(messages: Sequence[Message], walk: Walk, places: Places, tip: Place | None) -> Fork:
    """Compacted: a reply moved towards the beginning, or a shorter history keeps no reply of a longer one.

    A conversation that shares nothing with any other, not even its first message, is a side call.
    """
    known = walk.place.depth
    kept = walk.reply is not None
    for at in range(known, len(messages)):
        if messages[at]["role"] == "assistant" and (depths := places.depths(messages[at])):
            if max(depths) > at + 1 and at + 1 not in depths:
                return Fork.COMPACTED
            kept = True
    if kept:
        return Fork.REWRITTEN
    if known == 0:
        return Fork.SIDE
    return Fork.COMPACTED if tip is not None and len(messages) < tip.depth else Fork.REWRITTEN
