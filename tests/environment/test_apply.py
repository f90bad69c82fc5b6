"""git's view of an applied patch must match the paths that its headers name."""

from __future__ import annotations

import pytest

from hone.environment import PatchRefused
from hone.environment.apply import check_changes

SEPARATOR = "0123456789abcdef"


def status(*entries: str, before: tuple[str, ...] = ()) -> bytes:
    """Return the output of the apply script: `git status -z` after the patch, then before it."""
    after, earlier = ("".join(f"{entry}\0" for entry in group) for group in (entries, before))
    return f"{after}{SEPARATOR}\0{earlier}".encode()


def test_named_changes_and_leftovers_of_the_ladder_are_accepted() -> None:
    output = status(" M a.py", "?? new/b.py", "?? a.py.orig", "?? a.py.rej")
    check_changes(output, SEPARATOR, {"a.py", "new/b.py"})


@pytest.mark.parametrize("entry", [" M other.py", "?? other.py", " D other.py", "!! other.py", "?? new/"])
def test_change_outside_the_named_paths_is_refused(entry: str) -> None:
    with pytest.raises(PatchRefused, match=entry[3:].rstrip("/")):
        check_changes(status(" M a.py", entry), SEPARATOR, {"a.py"})


def test_changes_before_the_patch_and_of_trusted_tests_are_ignored() -> None:
    output = status(" M a.py", "?? built.so", " M tests/test_a.py", before=("?? built.so",))
    check_changes(output, SEPARATOR, {"a.py"}, {"tests/test_a.py"})
    with pytest.raises(PatchRefused, match="tests/test_a"):
        check_changes(output, SEPARATOR, {"a.py"})


@pytest.mark.parametrize("path", ["conftest.py", "a/b.pyc", ".gitattributes", "x.pth"])
def test_protected_path_is_refused_even_when_it_is_named(path: str) -> None:
    with pytest.raises(PatchRefused, match="headers do not name"):
        check_changes(status(f"?? {path}"), SEPARATOR, {path})
