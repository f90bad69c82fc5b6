"""Evidence that a patch, or the agent that made it, tried to influence its own grading.

This is not the boundary: a tampering patch gains nothing, because the tests run from trusted files and their
results come out of band. The evidence names the attempt and keeps the patch from counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hone.environment import FilePatch
from hone.grading.integrity.changes import Change
from hone.grading.integrity.existing_tests import scan_test_file
from hone.grading.integrity.patch_context import PatchContext, Tampering, read_context
from hone.grading.integrity.plugins import scan_configuration, scan_name, scan_plugins
from hone.grading.integrity.source import scan_source
from hone.grading.integrity.trajectory import SignalKind, scan_trajectory
from hone.types import Task

__all__ = ["SignalKind", "Tampering", "scan_patch", "scan_trajectory"]

# Each returns what one change does to the grading, as a predicate of its path, or None.
_SCANNERS: tuple[Callable[[Change, PatchContext], str | None], ...] = (
    scan_name, scan_test_file, scan_plugins, scan_configuration, scan_source,
)  # fmt: skip


def scan_patch(parts: Sequence[FilePatch], task: Task) -> Tampering | None:
    """Return the first evidence in a parsed patch, or None.

    It reads what the patch adds, except what the patch only moves or the reference fix also has. Added or
    edited tests, fixtures, dependencies, documents and reformatted code are not evidence. The time grows with
    the size of the patch, and other threads run meanwhile. Raises PatchRefused for a patch that would take
    longer.
    """
    context = read_context(parts, task)
    for scan in _SCANNERS:
        for change in context.changes:
            if reason := scan(change, context):
                return Tampering(path=change.path, evidence=f"{change.path} {reason}")
    return None
