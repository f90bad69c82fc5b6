"""The debugger agent: pdb, files and tests as tools, served by a small server inside the sandbox."""

from hone.agents.debugger.agent import DebuggerAgent

__all__ = ["DebuggerAgent"]
