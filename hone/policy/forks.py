"""Why a call began a new branch of its token tree."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch
from hone.policy.reply import CallKind
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
    messages: Sequence[Message],
    match: PrefixMatch,
    asked: MessageNode,
    conversations: ConversationTree,
    tip: MessageNode | None,
    purpose: CallKind,
) -> Fork:
    """Why `messages` fork the tree, where they do.

    `match` is their longest known beginning, `asked` their own place, `tip` the main line's last reply.
    """
    if asked.answered:
        return Fork.RETRY
    reply = match.reply
    if reply is not None and all(m["role"] != "assistant" for m in messages[reply.depth :]):
        if not reply.followers:
            return Fork.TEMPLATE
        if purpose is CallKind.MAIN and reply.followers == {CallKind.AUXILIARY}:
            return Fork.SIDE
    if purpose is CallKind.AUXILIARY:
        return Fork.SIDE
    if match.reasoning_dropped:
        return Fork.THINKING
    return _rewrite(messages, match, conversations, tip)


def _rewrite(
    messages: Sequence[Message], match: PrefixMatch, conversations: ConversationTree, tip: MessageNode | None
) -> Fork:
    """Compacted: a reply moved towards the beginning, or a shorter history keeps no reply of a longer one.

    A conversation that shares nothing with any other, not even its first message, is a side call.
    """
    known = match.node.depth
    kept = match.reply is not None
    for at in range(known, len(messages)):
        if messages[at]["role"] == "assistant" and (depths := conversations.depths(messages[at])):
            if max(depths) > at + 1 and at + 1 not in depths:
                return Fork.COMPACTED
            kept = True
    if kept:
        return Fork.REWRITTEN
    if known == 0:
        return Fork.SIDE
    return Fork.COMPACTED if tip is not None and len(messages) < tip.depth else Fork.REWRITTEN
