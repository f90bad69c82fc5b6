"""Black-box agents: unmodified command-line programs, each described by a TOML file."""

from hone.agents.blackbox.agent import BlackboxAgent
from hone.agents.blackbox.layer import is_prepared, prepare
from hone.agents.blackbox.program import Program, load_program, presets

__all__ = ["BlackboxAgent", "Program", "is_prepared", "load_program", "prepare", "presets"]
