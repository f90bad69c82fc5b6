"""Grading: from a patch to a verdict that the patch cannot write itself."""

from hone.grading.errors import GraderError
from hone.grading.grade import Grader
from hone.grading.run import TestRun
from hone.grading.settings import GradingSettings

__all__ = ["Grader", "GraderError", "GradingSettings", "TestRun"]
