"""Evidence that a patch, or the agent that made it, tried to influence its own grading.

This is not the boundary: a tampering patch gains nothing, because the tests run from trusted files and their
results come out of band. The evidence names the attempt and keeps the patch from counting.
"""

from hone.grading.integrity.patch_context import Tampering
from hone.grading.integrity.scan import scan_patch
from hone.grading.integrity.trajectory import SignalKind, scan_trajectory

__all__ = ["SignalKind", "Tampering", "scan_patch", "scan_trajectory"]
