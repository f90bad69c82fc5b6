"""Settings of the gateway."""

from __future__ import annotations

from pydantic import Field

from hone.settings import Settings


class SessionLimits(Settings):
    """What one session may use. A limit is looked at before a reply is sampled; then the session is over."""

    calls: int = Field(default=0, ge=0)
    """Replies that may be sampled, retries not counted; 0: no limit."""

    sampled_tokens: int = Field(default=0, ge=0)
    """Tokens after which no further reply is sampled; 0: no limit."""

    seconds: float = Field(default=0.0, ge=0)
    """Time from the opening of the session; a reply that is being sampled then is given up; 0: no limit."""
