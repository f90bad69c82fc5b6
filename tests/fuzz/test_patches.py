"""Any patch is read or refused within its bound, and git changes no path that the reader does not name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from hone.environment import PatchRefused, filter_patch, parse_patch
from hone.grading.integrity import scan_patch
from tests.fuzz.bounds import peak_bytes, steps
from tests.fuzz.patches import TREE, kept, patches
from tests.grading.example import git, make_task

MODES = ((), ("--reject",))  # a grading also tries --3way, which names the same paths
short = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hone-fuzz-") as name:
        folder = Path(name)
        git(folder, "init", "-q", "--template=")
        for path, data in TREE.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        git(folder, "add", "-A", "-f")
        git(folder, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "base")
        yield folder


def changed_by_git(folder: Path, patch: str) -> set[str]:
    """Return the paths that any mode of `git apply` changes, and leave the tree as it was."""
    changed: set[str] = set()
    data = patch.encode("utf-8", "surrogateescape")
    for mode in MODES:
        command = ["git", "apply", "--whitespace=nowarn", *mode, "-"]
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        applied = subprocess.run(
            command, cwd=folder, input=data, capture_output=True, env=environment, check=False
        )
        if applied.returncode == 0 or mode:
            options = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames")
            status = git(folder, "status", *options).decode("utf-8", "surrogateescape")
            changed |= {entry[3:] for entry in status.split("\0") if entry}
            if status:
                git(folder, "reset", "-q", "--hard")
                git(folder, "clean", "-qfdx")
        if applied.returncode == 0:
            break
    return {path for path in changed if not path.endswith(".rej")}


def check(folder: Path, patch: str) -> None:
    """Read a patch as a grading does; where it is accepted, compare with git."""
    try:
        patch.encode("utf-8", "surrogateescape")
        parts = parse_patch(patch)
        filtered = filter_patch(patch, ["tests/test_a.py"])
    except (PatchRefused, UnicodeEncodeError):  # half of a surrogate pair is refused before
        return
    named = {path for part in parts for path in part.paths}
    assert changed_by_git(folder, patch) <= named
    if filtered.text != patch:
        assert changed_by_git(folder, filtered.text) <= set(filtered.paths)


def check_cost(patch: str) -> None:
    def read(patch: str) -> None:
        with contextlib.suppress(PatchRefused):
            filter_patch(patch, ["tests/test_a.py"])
            scan_patch(parse_patch(patch), make_task())

    read(patch)  # compiles the patterns
    size = len(patch.encode("utf-8", "surrogatepass"))
    assert steps(read, patch) <= 20_000 + 100 * size
    assert peak_bytes(read, patch) <= (1 << 20) + 500 * size


@pytest.mark.parametrize("name", kept())
def test_kept_patch_is_read_as_git_reads_it(name: str, repository: Path) -> None:
    check(repository, kept()[name])
    check_cost(kept()[name])


@short
@given(patch=patches())
def test_git_changes_only_the_paths_of_a_patch(patch: str, repository: Path) -> None:
    check(repository, patch)


@short
@given(patch=patches())
def test_patch_is_read_within_its_bounds(patch: str) -> None:
    check_cost(patch)


@pytest.mark.full
@pytest.mark.timeout(900)  # half a minute on an idle machine
@long
@given(patch=patches())
def test_git_changes_only_the_paths_of_any_patch(patch: str, repository: Path) -> None:
    check(repository, patch)
    check_cost(patch)
