"""Context policies: cut a conversation that grows too long for the model."""

from hone.agents.context.head_tail import Counter, head_tail, omitted_marker
from hone.agents.context.managed import ManagedAgent, ManagedChat, drop_thinking

__all__ = ["Counter", "ManagedAgent", "ManagedChat", "drop_thinking", "head_tail", "omitted_marker"]
