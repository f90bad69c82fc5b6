"""Settings of mining."""

from __future__ import annotations

from pydantic import Field

from hone.settings import Settings


class MiningSettings(Settings):
    """Limits on the commits that are tried."""

    max_source_files: int = Field(default=6, ge=1)
    """Source files that a fix may change."""
    max_source_lines: int = Field(default=200, ge=1)
    """Source lines that a fix may add and delete together."""
    max_test_files: int = Field(default=10, ge=1)
    """Test files, data included, that a fix may change."""
    max_test_lines: int = Field(default=1000, ge=1)
    """Test lines that a fix may add and delete together."""
    max_fixed_tests: int = Field(default=10, ge=1)
    """Test functions that a fix may make pass; more of them test a whole feature."""
    repeats: int = Field(default=3, ge=1)
    """Runs of the tests without and with the fix, and gradings of each for admission."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that the first run of the changed test files may take; the limits of the others follow it."""
    min_statement: int = Field(default=100, ge=0)
    """Letters that a statement needs besides its examples, where a failing test has no example."""
    tests: tuple[str, ...] = ()
    """Globs of tests, besides files in `test` directories and those with the names of tests."""
