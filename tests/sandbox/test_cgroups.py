"""Control groups of sandboxes: made once, used again by equals, few kept idle, none left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import Limits
from hone.sandbox.namespaces import cgroups

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(not cgroups.find_roots(), reason="no control groups may be made here"),
]


@pytest.fixture
def owner() -> Iterator[str]:
    name = f"test-{os.getpid()}"
    cgroups.open_owner(cgroups.find_roots(), name)
    yield name
    left = [str(path) for base in set(cgroups.find_roots().values()) for path in Path(base).glob(f"{name}*")]
    assert left == []


def test_group_is_reused_for_equal_limits_only(owner: str) -> None:
    groups = cgroups.Groups(cgroups.find_roots(), owner)
    small, large = Limits(memory_mib=64), Limits(memory_mib=128)
    first = groups.take(small)
    groups.release(small, first)
    other = groups.take(large)
    assert other != first
    assert groups.take(small) == first
    second = groups.take(small)  # the first is in use
    assert second not in (first, other)
    for limits, directories in ((small, first), (small, second), (large, other)):
        groups.release(limits, directories)
    groups.close()


def test_idle_groups_are_bounded(owner: str) -> None:
    roots = cgroups.find_roots()
    groups = cgroups.Groups(roots, owner)
    taken = [groups.take(Limits()) for _ in range(70)]
    for directories in taken:
        groups.release(Limits(), directories)
    kept = {path for base in set(roots.values()) for path in Path(base, owner).iterdir() if path.is_dir()}
    assert len(kept) == 64 * len(set(roots.values()))
    groups.close()
