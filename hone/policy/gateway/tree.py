"""A session as JSON, for those who may see all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from hone.policy.gateway.session import Session
from hone.types import Call
from hone.utils import clock


@runtime_checkable
class Counting(Protocol):
    """A chat that keeps account of its calls, as `hone.policy.chat.Chat` does."""

    calls: list[Call]


def session_json(session: Session) -> dict[str, Any]:
    """How a session stands, without its secret."""
    return {
        "id": session.id,
        "calls": len(session.exchanges),
        "retries": session.retries,
        "sampled_tokens": sum(exchange.reply.sampled_tokens for exchange in session.exchanges),
        "seconds": clock.monotonic() - session.opened,
        "limits": session.limits.model_dump(),
        "ended": session.ended,
        "error": None if session.error is None else str(session.error),
    }


def tree_json(session: Session) -> dict[str, Any]:
    """The token tree, exactly, and the calls that made it.

    A node's `logprobs` and `version` are empty where it was not sampled; a call's `fork` is why its prompt
    does not continue the tip of the conversation, null where it does or the chat keeps no account of it.
    """
    chat = session.chat
    forks = {call.node: call.fork for call in _calls(chat)}
    return {
        "id": session.id,
        "nodes": [
            {
                "parent": node.parent,
                "tokens": node.tokens.tolist(),
                "sampled": node.sampled,
                "logprobs": node.logprobs.tolist(),
                "version": node.version.tolist(),
                "turn": node.turn,
            }
            for node in chat.tree.nodes
        ],
        "calls": [
            {
                "index": exchange.index,
                "node": exchange.reply.node,
                "purpose": exchange.purpose,
                "fork": forks.get(exchange.reply.node),
                "retries": exchange.retries,
                "prompt_tokens": exchange.reply.prompt_tokens,
                "sampled_tokens": exchange.reply.sampled_tokens,
                "truncated": exchange.reply.truncated,
                "seconds": exchange.ended - exchange.started,
            }
            for exchange in session.exchanges
        ],
    }


def _calls(chat: object) -> Sequence[Call]:
    return chat.calls if isinstance(chat, Counting) else ()
