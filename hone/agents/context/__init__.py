"""What is done with a conversation that grows too long for the model: policies over messages."""

from hone.agents.context.head_tail import Counter, head_tail, omitted_marker
from hone.agents.context.managed import ManagedAgent, ManagedChat
from hone.agents.context.thinking import drop_thinking

__all__ = ["Counter", "ManagedAgent", "ManagedChat", "drop_thinking", "head_tail", "omitted_marker"]
