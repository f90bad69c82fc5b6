"""Whether a patch tries to influence its own grading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hone.environment import FilePatch
from hone.grading.integrity.configuration import configuration_evidence
from hone.grading.integrity.names import name_evidence
from hone.grading.integrity.patch_context import PatchContext, Tampering, read_context
from hone.grading.integrity.plugins import plugin_evidence
from hone.grading.integrity.source import source_evidence
from hone.grading.integrity.suites import suite_evidence
from hone.types import Task

_LOOKS: tuple[Callable[[PatchContext], Iterator[Tampering]], ...] = (
    name_evidence,
    suite_evidence,
    plugin_evidence,
    configuration_evidence,
    source_evidence,
)


def scan_patch(parts: Sequence[FilePatch], task: Task) -> Tampering | None:
    """The first evidence that a patch (`parse_patch`) tries to influence its own grading; None without any.

    Looked at is what the patch adds, unless it only moves it or the reference fix has it, too. A patch that
    adds or edits tests, fixtures, dependencies or documents, or reformats what is there, is no evidence.
    Never raises.
    """
    context = read_context(parts, task)
    return next((found for look in _LOOKS for found in look(context)), None)
