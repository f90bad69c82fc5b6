"""Scan a patch for attempts to influence its own grading."""

from __future__ import annotations

from collections.abc import Sequence

from hone.environment import FilePatch
from hone.grading.integrity.configuration import configuration_evidence
from hone.grading.integrity.names import name_evidence
from hone.grading.integrity.patch_context import Tampering, read_context
from hone.grading.integrity.plugins import plugin_evidence
from hone.grading.integrity.source import source_evidence
from hone.grading.integrity.suites import suite_evidence
from hone.types import Task

_SCANNERS = (name_evidence, suite_evidence, plugin_evidence, configuration_evidence, source_evidence)


def scan_patch(parts: Sequence[FilePatch], task: Task) -> Tampering | None:
    """Return the first evidence in a parsed patch, or None. Never raises.

    It reads what the patch adds, except what the patch only moves or the reference fix also has. Added or
    edited tests, fixtures, dependencies, documents and reformatted code are not evidence.
    """
    context = read_context(parts, task)
    return next((evidence for scanner in _SCANNERS for evidence in scanner(context)), None)
