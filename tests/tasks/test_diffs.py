"""Reversed patches undo their originals, as git applies both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.tasks.diffs import file_diff, reverse
from hone.tasks.errors import TaskError
from tests.examples import examples

BEFORE = {
    "a.py": "one\ntwo\nthree\n",
    "b b/c.txt": "x\n-- y\n++ z",
    "gone.py": "last\n",
    "moved.py": "m\n" * 9,
}
AFTER = {
    "a.py": "one\n2\nthree\nfour",
    "b b/c.txt": "x\n++ z\n",
    "new.py": "--- a/new.py\n",
    "there.py": "m\n" * 9,
}


def write(folder: Path, files: dict[str, str]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.unlink()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def run_git(folder: Path, *arguments: str, stdin: str = "") -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(git, input=stdin, capture_output=True, text=True, check=True).stdout


def test_reversed_patch_is_applied_by_git(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q")
    write(tmp_path, BEFORE)
    run_git(tmp_path, "add", "-A")
    run_git(tmp_path, "commit", "-qm", "before")
    write(tmp_path, AFTER)
    (tmp_path / "a.py").chmod(0o755)
    run_git(tmp_path, "add", "-A")
    patch = run_git(tmp_path, "diff", "--cached", "-M")
    assert "rename from" in patch
    run_git(tmp_path, "commit", "-qm", "after")
    undo = reverse(patch)
    assert reverse(undo) == patch
    run_git(tmp_path, "apply", "--index", stdin=undo)
    assert run_git(tmp_path, "diff", "--cached", "HEAD~1") == ""


lines = st.lists(st.sampled_from(["a", "b", "- c", "+ d", "\\ e", "", "@@ -1 +1 @@"]), max_size=6)


@settings(max_examples=examples(50), deadline=None)
@given(lines, lines, st.booleans())
def test_reversal_of_a_reversal_is_the_patch(before: list[str], after: list[str], ended: bool) -> None:
    texts = ["\n".join(each) + ("\n" if ended and each else "") for each in (before, after)]
    patch = file_diff("a/b.py", texts[0], texts[1])
    assert reverse(reverse(patch)) == patch
    swapped = str.maketrans("+-", "-+")
    changed = [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line[0].translate(swapped) + line[1:] for line in changed] == [
        line for line in reverse(patch).splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", "truncated"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 3\n", "binary"),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", "copies"),
    ],
)
def test_patch_that_cannot_be_reversed_is_refused(patch: str, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        reverse(patch)
