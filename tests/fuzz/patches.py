"""Strategies for patches: a grammar of what diff and git write, and damage to it and to kept inputs."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

CORPUS = Path(__file__).parent / "corpus" / "patches"
# The repository that patches are for. Most lines are equal, so that hunks apply in several places.
TREE: dict[str, bytes] = {
    "a.py": b"one\ntwo\nthree\nfour\nfive\n",
    "b.py": b"one\ntwo\n",
    "no newline": b"one\ntwo",
    "empty": b"",
    "crlf.txt": b"one\r\ntwo\r\n",
    "conftest.py": b"one\ntwo\nthree\n",
    "d/é.py": b"one\ntwo\nthree\n",
    "d/x y 12:00:00.py": b"one\n",
    "tests/test_a.py": b"one\ntwo\nthree\n",
    "data.bin": bytes(range(64)),
}
_NEW = (
    "new.py",
    "d/new.py",
    "a.py/x",
    "tests/conftest.py",
    "q t",
    "d/e/f",
    "tab\tname",
    'quo"te',
    ".gitignore",
)
PATHS = st.sampled_from([*TREE, *_NEW])
_LINES = st.sampled_from(
    [
        *(
            "one",
            "two",
            "three",
            "",
            " ",
            "--- a/b.py",
            "+++ b/b.py",
            "diff --git a/b.py b/b.py",
            "-- a/b.py",
        ),
        *("++ b/b.py", "@@ -1 +1 @@", "x\r", "\x0c", "é", "\x00", "rename from b.py", "GIT binary patch"),
    ]
)
_TIMES = st.sampled_from(
    [
        "",
        "",
        "",
        "",
        "\t",
        "\t2026-01-01 00:00:00.000000000 +0000",
        " 2026-01-01 00:00:00",
        "\ta\t2026-01-01 00:00:00",
    ]
)
_NONE = "0" * 40
_HI = "32f95c0d1244a78b2be1bab8de17906fabb2c4a8"  # git's name of the content "hi"
_BINARY = "literal 2\nJc$~|~1ONd$0MY;e\n\nliteral 0\nHc$@<O00001\n\n"


def _quoted(path: str) -> str:
    """Return a path as git writes it in a header."""
    data = path.encode()
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return path
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in data) + '"'


@st.composite
def _hunks(draw: st.DrawFn, path: str, created: bool, deleted: bool) -> str:
    """Return hunks, most of which fit the file."""
    known = [] if created else TREE.get(path, b"").decode("utf-8", "replace").split("\n")
    if known and known[-1] == "":
        known.pop()
    start = 0 if deleted else draw(st.integers(0, len(known)))
    end = len(known) if deleted else draw(st.integers(start, len(known)))
    added = [] if deleted else draw(st.lists(_LINES, max_size=3))
    body = [f" {line}" for line in known[:start]]
    body += [*(f"-{line}" for line in known[start:end]), *(f"+{line}" for line in added)]
    body += [f" {line}" for line in known[end:]]
    new = len(known) - (end - start) + len(added) + draw(st.sampled_from([0] * 18 + [1, -1]))
    heading = draw(st.sampled_from(["", "", " def f():", " a/b.py"]))
    ranges = f"-{min(1, len(known))},{len(known)} +{min(1, new)},{new}"
    return f"@@ {ranges} @@{heading}\n" + "".join(f"{line}\n" for line in body)


@st.composite
def parts(draw: st.DrawFn) -> str:
    """Return the part of one file."""
    kind = draw(
        st.sampled_from(
            ["edit", "plain", "plain", "create", "delete", "rename", "copy", "mode", "binary", "link"]
        )
    )
    path, other = draw(PATHS), draw(PATHS)
    before, after = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    if kind == "plain":
        old = draw(st.sampled_from([before, before, "/dev/null"]))
        new = draw(st.sampled_from([after, after, "/dev/null"]))
        header = f"--- {old}{draw(_TIMES)}\n+++ {new}{draw(_TIMES)}\n"
        return header + draw(_hunks(path, old == "/dev/null", new == "/dev/null"))
    if kind in ("rename", "copy"):
        header = f"diff --git {before} {_quoted(f'b/{other}')}\nsimilarity index 90%\n"
        header += f"{kind} from {_quoted(path)}\n{kind} to {_quoted(other)}\n"
        names = f"--- {before}\n+++ {_quoted(f'b/{other}')}\n"
        return header + (names + draw(_hunks(path, False, False)) if draw(st.booleans()) else "")
    header = f"diff --git {before} {after}\n"
    if kind == "mode":
        return header + "old mode 100644\nnew mode 100755\n"
    if kind == "binary":
        mode = draw(st.sampled_from(["new file mode 100644\n", ""]))
        return f"{header}{mode}index {_NONE}..{_HI}\nGIT binary patch\n{_BINARY}"
    if kind == "link":
        target = draw(st.sampled_from(["b.py", "../x", ".git/config", "d"]))
        return f"{header}new file mode 120000\n--- /dev/null\n+++ {after}\n@@ -0,0 +1 @@\n+{target}\n"
    created, deleted = kind == "create", kind == "delete"
    header += "new file mode 100644\n" if created else "deleted file mode 100644\n" if deleted else ""
    names = f"--- {'/dev/null' if created else before}\n+++ {'/dev/null' if deleted else after}\n"
    return header + names + draw(_hunks(path, created, deleted))


_TOKENS = st.sampled_from(
    [
        *(
            "--- a/b.py",
            "+++ b/b.py",
            "@@ -1 +1 @@",
            "@@ -1,0 +1 @@",
            "-one",
            "+x",
            " one",
            "",
            "-- ",
            "2.39.5",
        ),
        *(
            "diff --git a/b.py b/b.py",
            "diff --git a/b.py b/conftest.py",
            "rename from b.py",
            "rename to new.py",
        ),
        *("copy from b.py", "copy to new.py", "new mode 100755", "new file mode 120000", "index 1..2 100644"),
        *(
            "deleted file mode 100644",
            "GIT binary patch",
            "literal 0",
            "delta 0",
            "HcmV?d00001",
            "Index: b.py",
        ),
        *("Binary files a/b.py and b/b.py differ", "\\ No newline at end of file", "similarity index 100%"),
        *("--- a/conftest.py", "+++ b/conftest.py", "From: x"),
    ]
)


@st.composite
def damaged(draw: st.DrawFn, texts: SearchStrategy[str]) -> str:
    """Return a text after a few changes of lines or characters."""
    text = draw(texts)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        lines = text.split("\n")
        place = draw(st.integers(0, max(len(lines) - 1, 0)))
        change = draw(st.sampled_from(["insert", "delete", "repeat", "swap", "character", "cut", "crlf"]))
        if change == "insert":
            lines.insert(place, draw(_TOKENS))
        elif change == "delete":
            del lines[place]
        elif change == "repeat":
            lines.insert(place, lines[place])
        elif change == "swap":
            lines[place], lines[-1] = lines[-1], lines[place]
        elif change == "crlf":
            lines[place] += "\r"
        elif change == "cut":
            lines = lines[: place + 1]
        else:
            at = draw(st.integers(0, len(lines[place])))
            piece = draw(
                st.sampled_from([" ", "\t", "/", '"', "\\", "-", "+", "@", "a", "0", "é", "\ud800", "\x00"])
            )
            lines[place] = lines[place][:at] + piece + lines[place][at:]
        text = "\n".join(lines)
    return text


def kept() -> dict[str, str]:
    """Return the kept inputs: name -> patch."""
    files = sorted(CORPUS.glob("*.patch"))
    return {file.stem: file.read_bytes().decode("utf-8", "surrogatepass") for file in files}


def patches() -> SearchStrategy[str]:
    """Return patches of several files, kept inputs among them."""
    separators = st.sampled_from(["", "", "", "\n", "-- \n2.39.5\n"])
    whole = st.lists(st.tuples(parts(), separators).map("".join), min_size=1, max_size=3).map("".join)
    return damaged(st.one_of(whole, whole, st.sampled_from(list(kept().values()))))
