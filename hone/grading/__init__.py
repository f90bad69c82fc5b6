"""Grading: from a patch to a verdict that the patch cannot write itself."""

from hone.grading.errors import BrokenTree, GraderError, PatchRefused
from hone.grading.extraction import base_mounts, extract
from hone.grading.furnish import open_workspace, start_agents
from hone.grading.grade import Grader, grade
from hone.grading.patch import (
    FilteredPatch,
    filter_patch,
    parse_patch,
    test_paths,
)
from hone.grading.settings import GradingSettings
from hone.grading.suite import SuiteRun, run_suite
from hone.grading.verdict import make_verdict, read_report

__all__ = [
    "BrokenTree",
    "FilteredPatch",
    "Grader",
    "GraderError",
    "GradingSettings",
    "PatchRefused",
    "SuiteRun",
    "base_mounts",
    "extract",
    "filter_patch",
    "grade",
    "make_verdict",
    "open_workspace",
    "parse_patch",
    "read_report",
    "run_suite",
    "start_agents",
    "test_paths",
]
