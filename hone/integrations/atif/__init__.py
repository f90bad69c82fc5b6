"""ATIF, the Agent Trajectory Interchange Format of Harbor, version 1.8: rollouts out and back.

    Trajectory -> to_atif -> JSON -> from_atif -> the same Trajectory, bit for bit

A message, or a reply with its tool calls and results, is a step. A reply's metrics hold its token ids, their
log-probabilities and, in `extra`, its nodes of the token tree; a call to the policy beside the agent's own
turns is an embedded sub-agent trajectory. `extra.hone` at the root holds every other field. A prompt is
written once: the file's size grows with the number of tokens in the tree, not with its square.
"""

from hone.integrations.atif.export import to_atif
from hone.integrations.atif.read import from_atif
from hone.integrations.atif.schema import AtifError

__all__ = ["AtifError", "from_atif", "to_atif"]
