"""A store in a fresh directory, and the real registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.sandbox.images import ImageStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def store(directory: Path) -> ImageStore:
    return ImageStore(directory, budget_gib=1)
