"""Patches are parsed as git wrote them, and protected paths are removed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.environment import PatchRefused, filter_patch, parse_patch
from tests.grading.example import git

_NAMES = st.text(st.sampled_from("ab é\"\\\t\n+-@ '.~"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..") and not name.lower().startswith(".git")
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_LINES = st.sampled_from(
    ["", "x", "y\r", "--- a/x", "+++ b/x", "diff --git a/q b/q", "@@ -1 +1 @@", "\\ No newline", "\x0c", " "]
)
_CONTENTS = st.one_of(
    st.lists(_LINES, max_size=8).map(lambda lines: "\n".join(lines).encode()), st.binary(max_size=20)
)
_TREES = st.dictionaries(_PATHS, _CONTENTS, max_size=6)


def _write(folder: Path, tree: dict[str, bytes]) -> None:
    """Write a tree; skip a name that is both a file and a directory."""
    written: set[str] = set()
    for name, content in tree.items():
        if any(name.startswith(f"{other}/") or other.startswith(f"{name}/") for other in written):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        written.add(name)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=_TREES, after=_TREES, quoted=st.booleans())
def test_parser_finds_the_files_that_git_changed(
    before: dict[str, bytes], after: dict[str, bytes], quoted: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        git(folder, "init", "-q", "--bare", "--template=")
        trees = []
        for i, tree in enumerate((before, after)):
            (folder / f"tree{i}").mkdir()
            _write(folder / f"tree{i}", tree)
            work = ("--git-dir=.", f"--work-tree=tree{i}")
            git(folder, *work, "add", "-A", "-f", ".")
            trees.append(git(folder, *work, "write-tree").decode().strip())
        options = (
            "-c",
            f"core.quotePath={str(quoted).lower()}",
            "--git-dir=.",
            "diff",
            "--no-renames",
            *trees,
        )
        changed = git(folder, *options, "--name-only", "-z").decode().split("\0")[:-1]
        patch = git(folder, *options, "--binary").decode("utf-8", "surrogateescape")
    parts = parse_patch(patch)
    assert [path for part in parts for path in part.paths] == changed
    assert "".join(part.text for part in parts) == patch
    assert filter_patch(patch, changed[:1]).paths == tuple(changed[1:])


@given(st.text(st.sampled_from('diffgt -+@/ab\n\\"019,'), max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parts = parse_patch(text)
    except PatchRefused:
        return
    assert all(part.paths and not path.startswith("/") for part in parts for path in part.paths)


def _new_file(path: str, mode: str = "100644", line: str = "x") -> str:
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1 @@\n+{line}\n"


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_hidden.py",
        "tests",
        "conftest.py",
        "a/b/conftest.py",
        "pytest.ini",
        "tox.ini",
        "a/setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "x.pth",
        "a/__pycache__/stats.py",
        "a/stats.pyc",
        "stats.pyo",
        "x.egg-info/entry_points.txt",
        "src/x-1.dist-info/METADATA",
        ".pytest_cache/x",
        ".gitattributes",
        "a/.git/config",
        ".GIT/config",
        ".github/workflows/x.yml",
    ],
)
def test_protected_path_is_dropped_and_reported(path: str) -> None:
    patch = _new_file("a.py") + _new_file(path) + _new_file("b.py")
    filtered = filter_patch(patch, ["tests/test_hidden.py"])
    assert filtered.removed_paths == (path,)
    assert filtered.paths == ("a.py", "b.py")
    assert filtered.text == _new_file("a.py") + _new_file("b.py")


@pytest.mark.parametrize("path", ["a", "a/b", "a/b/c"])
def test_file_in_place_of_a_folder_of_protected_files_is_dropped(path: str) -> None:
    assert filter_patch(_new_file(path), ["a/b/c/data.json"]).removed_paths == (path,)


def test_rename_from_or_to_a_protected_path_is_dropped() -> None:
    rename = "diff --git a/{0} b/{1}\nsimilarity index 100%\nrename from {0}\nrename to {1}\n"
    patch = rename.format("conftest.py", "x.py") + rename.format("y.py", "tests/conftest.py")
    assert filter_patch(patch, []).text == ""
    assert filter_patch(rename.format("x.py", "y.py"), []).paths == ("x.py", "y.py")


@pytest.mark.parametrize(
    "patch",
    [
        _new_file("../x"),
        _new_file("a/../../x"),
        _new_file("/etc/passwd"),
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\nnot in any file\n",
        "--- a/x\n+++ c/x\n@@ -1 +1 @@\n-a\n+b\n",
        'diff --git "a/x b/x\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n',
        "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n",
        "just words\n",
        f"--- a/x\n+++ b/x\n@@ -1,{'9' * 5000} +1 @@\n-a\n+b\n",
        _new_file("link", "120000", "/etc/passwd"),
        _new_file("a/link", "120000", "../../x"),
        _new_file("link", "120000", ".."),
        _new_file("a/link", "120000", "../.."),
        _new_file("link", "120000", "a/../.."),
        _new_file("sub", "160000", "Subproject commit 1"),
        "diff --git a/x b/x\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/x\nnew file modes 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n",
        'diff --git a/x b/x"\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n',
        'diff --git "a/\\q" "b/\\q"\nold mode 100644\nnew mode 100755\n',
        "--- a/x 2026-01-01 00:00:00 +0000\n+++ b/x 2026-01-01 00:00:00 +0000\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/x\ty\t2026-01-01 00:00:00\n+++ b/x\ty\t2026-01-01 00:00:00\n@@ -1 +1 @@\n-a\n+b\n",
        "--- a/x\r\n+++ b/x\r\n@@ -1 +1 @@\n-a\n+b\n",
        "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\r\n",
        "diff --git a/x b/x\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        "diff --git a/x b/x\nindex 0..1\nGIT binary patch\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
        _new_file("link", "120000", "x\n+../y"),
    ],
)
def test_malformed_or_escaping_patch_is_refused(patch: str) -> None:
    with pytest.raises(PatchRefused):
        filter_patch(patch, [])


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ('a/plain.py "b/caf\\303\\251.py"', ("plain.py", "café.py")),
        ('"a/caf\\303\\251.py" b/plain.py', ("café.py", "plain.py")),
        (r'"a/\a\b\t\n\v\f\r\"\\" b/x', ('\a\b\t\n\v\f\r"\\', "x")),
        ("a/one two b/one two", ("one two",)),
        ("a/one b/two", ("one", "two")),
    ],
)
def test_both_paths_of_a_git_line_are_read(line: str, paths: tuple[str, ...]) -> None:
    (part,) = parse_patch(f"diff --git {line}\nold mode 100644\nnew mode 100755\n")
    assert part.paths == paths


@pytest.mark.parametrize("kind", ["rename", "copy"])
def test_renames_and_copies_name_both_paths(kind: str) -> None:
    patch = f"diff --git a/a b c b/d e\nsimilarity index 100%\n{kind} from a b c\n{kind} to d e\n"
    assert [part.paths for part in parse_patch(patch)] == [("a b c", "d e")]
    wrong = f"diff --git a/a b/b\nsimilarity index 100%\n{kind} from a\n{kind} to c\n"
    with pytest.raises(PatchRefused, match="disagree"):
        parse_patch(wrong)


def test_link_inside_the_repository_is_kept() -> None:
    for target in ("../b", "..", "b/../..", "..c"):
        patch = _new_file("a/link", "120000", target)
        assert filter_patch(patch, []).text == patch


def test_headers_inside_a_hunk_are_content() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/conftest.py\n+++ b/conftest.py\n same\n"
    assert [part.paths for part in parse_patch(patch)] == [("x",)]


def test_patch_truncated_in_its_last_hunk_is_kept() -> None:
    whole = "--- a/x.py\n+++ b/x.py\n@@ -1,4 +1,4 @@\n-a\n+b\n c\n d\n e\n"
    (part,) = parse_patch(whole.removesuffix(" e\n"))
    assert (part.paths, part.text) == (("x.py",), whole.removesuffix(" e\n"))


def test_part_after_binary_content_is_a_part_of_its_own() -> None:
    binary = "diff --git a/x b/x\nindex 0..1\nGIT binary patch\nliteral 2\nJc$~|~1ONd$0MY;e\n\n"
    plain = "--- a/conftest.py\n+++ b/conftest.py\n@@ -1 +1 @@\n-a\n+b\n"
    for undo in ("", "literal 0\nHc$@<O00001\n\n"):
        assert [part.paths for part in parse_patch(binary + undo + plain)] == [("x",), ("conftest.py",)]


def test_name_ends_at_the_tab_before_a_time() -> None:
    time = "\t2026-01-01 00:00:00.000000000 +0000"
    (part,) = parse_patch(f"--- a/one 12{time}\n+++ b/one 12{time}\n@@ -1 +1 @@\n-a\n+b\n")
    assert part.paths == ("one 12",)
