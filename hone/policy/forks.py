"""Classify why a call forked its token tree."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hone.policy.conversation_tree import ConversationTree, MessageNode, PrefixMatch
from hone.policy.reply import CallKind
from hone.types import Message


class Fork(StrEnum):
    """Why a prompt does not extend the last reply of its conversation."""

    RETRY = "retry"  # the same messages were sent again
    TEMPLATE = "template"  # the chat template renders earlier messages differently now
    AUXILIARY = "side"  # an auxiliary call, or the main conversation after one
    THINKING = "thinking"  # the reasoning of earlier replies was removed
    COMPACTED = "compacted"  # earlier messages were dropped or summarised
    REWRITTEN = "rewritten"  # any other change of the history or the tools


def fork_reason(
    messages: Sequence[Message],
    match: PrefixMatch,
    request_node: MessageNode,
    conversations: ConversationTree,
    tip: MessageNode | None,
    purpose: CallKind,
) -> Fork:
    """Return why `messages` fork the tree; call it only for a fork.

    `match` is their longest known prefix, `request_node` their node, `tip` the last main reply.
    """
    if request_node.answered:
        return Fork.RETRY
    reply = match.reply
    if reply is not None and all(m["role"] != "assistant" for m in messages[reply.depth :]):
        if not reply.followers:
            return Fork.TEMPLATE
        if purpose is CallKind.MAIN and reply.followers == {CallKind.AUXILIARY}:
            return Fork.AUXILIARY
    if purpose is CallKind.AUXILIARY:
        return Fork.AUXILIARY
    if match.reasoning_dropped:
        return Fork.THINKING
    return _rewrite_reason(messages, match, conversations, tip)


def _rewrite_reason(
    messages: Sequence[Message], match: PrefixMatch, conversations: ConversationTree, tip: MessageNode | None
) -> Fork:
    """Return COMPACTED if a reply moved to a smaller depth or a shorter history keeps no recorded reply.

    A conversation without any common prefix with another one is an auxiliary call.
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
        return Fork.AUXILIARY
    return Fork.COMPACTED if tip is not None and len(messages) < tip.depth else Fork.REWRITTEN
