"""Evidence that a patch, or the agent that made it, tried to influence its own grading.

None of this is the boundary: a tampering patch gets no credit because the tests run from trusted files, and
their results come out of band. What is found here says so in words, and keeps such a patch from counting.
"""

from hone.grading.integrity.patch_context import Tampering
from hone.grading.integrity.patches import scan_patch
from hone.grading.integrity.trajectory import Signal, SignalKind, scan_trajectory

__all__ = [
    "Signal",
    "SignalKind",
    "Tampering",
    "scan_patch",
    "scan_trajectory",
]
