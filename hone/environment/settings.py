"""Settings of a task's environment: the virtual environment and the limits on patches."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hone.settings import Settings


class EnvironmentSettings(Settings):
    """Part of the group `grading` of a recipe."""

    max_patch_kib: int = Field(default=1024, ge=1)
    """Largest patch, in KiB; a larger one is not graded and counts as unresolved."""
    extract_timeout_s: float = Field(default=60.0, gt=0)
    """Time limit for reading a patch out of an agent's sandbox, in seconds."""
    build_timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit for compiling a repository's extensions again after a patch that changes their sources, in
    seconds."""
    slack_s: float = Field(default=30.0, gt=0)
    """Time that one grading may take beyond the tests themselves, for git and the runner's start, in
    seconds."""
    venv: Path | None = None
    """Virtual environment, with pytest, that runs the tests of `repo:` tasks. Default: install what each
    task requires, once."""
