"""File formats of tasks: Hone's own and those of public data sets.

A format converts rows to tasks and back without loss: a task keeps its row.
"""

from __future__ import annotations

from hone.tasks.formats.own import (
    content_hash,
    from_dict,
    save,
    to_dict,
    to_line,
)
from hone.tasks.formats.registry import FORMATS, Format, detect
from hone.tasks.formats.swebench import origin

__all__ = [
    "FORMATS",
    "Format",
    "content_hash",
    "detect",
    "from_dict",
    "origin",
    "save",
    "to_dict",
    "to_line",
]
