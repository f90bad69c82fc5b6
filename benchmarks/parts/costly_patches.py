"""Patches, commands and replies built to cost their readers as much time as possible, of any size.

Each generator aims at one pattern or one loop: near-matches that fail late, many distinct matches, many
files, many hunks, long lines.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from itertools import count

from hone.types import Checks, Environment, Task

TESTS = 300  # test files of the task
Make = Callable[[int], str]  # bytes -> patch


def task() -> Task:
    """Return a task with many test files, some of them long."""
    names = tuple(f"tests/part{i % 20}/test_{i}.py::test_{j}" for i in range(TESTS) for j in range(3))
    text = "".join(f"def test_{j}():\n    assert {j} == {j}\n\n\n" for j in range(300))
    return Task(
        id="costly",
        problem="",
        environment=Environment(image="host"),
        checks=Checks(
            fail_to_pass=names,
            pass_to_pass=(),
            test_files={f"tests/part{i % 20}/test_{i}.py": text for i in range(TESTS)},
            gold_patch="",
        ),
        source="benchmark",
    )


def edited(path: str, lines: Sequence[str], before: Sequence[str] = ()) -> str:
    """Return the change of a file that removes and adds lines."""
    header = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    hunk = f"@@ -1,{len(before)} +1,{len(lines)} @@\n"
    return header + hunk + "".join(f"-{line}\n" for line in before) + "".join(f"+{line}\n" for line in lines)


def created(path: str, lines: Sequence[str]) -> str:
    """Return the patch of a new file."""
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return header + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


def compressed(path: str, data: bytes) -> str:
    """Return the patch of a new file in git's binary form."""
    packed = zlib.compress(data)
    lines: list[str] = []
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        size = chr(len(piece) + (64 if len(piece) <= 26 else 70))
        lines.append(size + base64.b85encode(piece, pad=True).decode())
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0..1\nGIT binary patch\n"
    return header + f"literal {len(data)}\n" + "".join(f"{line}\n" for line in lines) + "\n"


def _fill(line: Callable[[int], str], size: int) -> list[str]:
    """Return lines of `size` bytes in all."""
    lines: list[str] = []
    left = size
    for index in count():
        lines.append(line(index))
        left -= len(lines[-1].encode()) + 2
        if left <= 0:
            return lines
    raise AssertionError


def _repeated(piece: str, path: str = "x.py") -> Make:
    """Return a generator of one file that holds nothing but repetitions, on lines of 400 characters."""
    line = (piece * (400 // len(piece) + 1))[:399]
    return lambda size: edited(path, _fill(lambda _: line, size))


def _lines(line: Callable[[int], str], path: str = "x.py", before: bool = False) -> Make:
    """Return a generator of one file with numbered lines; `before`: it held all of them already."""

    def make(size: int) -> str:
        lines = _fill(line, size // (2 if before else 1))
        return edited(path, lines, lines if before else ())

    return make


def _files(part: Callable[[int], str]) -> Make:
    return lambda size: "".join(_fill(part, size))


def _hunks(size: int) -> str:
    header = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n"
    return header + "".join(_fill(lambda i: f"@@ -{i},1 +{i},1 @@\n-a\n+b\n", size))


def _own_tests(size: int) -> str:
    lines = _fill(lambda _: "@skip", size)
    return edited("tests/part0/test_0.py", ["def test_new():", *lines])


def _skips_below(size: int) -> str:
    return edited(
        "tests/part0/test_0.py", ["def test_new():", *_fill(lambda _: "    pytest.skip()", size), "class A:"]
    )


def _trusted_skips(size: int) -> str:
    """Many lines that are not new, each different."""
    lines = _fill(lambda i: f"    pytest.skip('{i}')", size // 2)
    return edited("tests/part0/test_0.py", lines, lines)


_TEST = "tests/part0/test_0.py"
PATCHES: dict[str, Make] = {
    # parser
    "one long line": lambda size: edited("x.txt", ["x" * size]),
    "one long path": lambda size: created("a/" * (size // 8) + "b", ["x"]),
    "one long quoted path": lambda size: (
        'diff --git "a/' + "é" * (size // 8) + '\\q" "b/x"\nold mode 100644\nnew mode 100755\n'
    ),
    "an escape for every byte": lambda size: (
        'diff --git "a/{0}" "b/{0}"\nold mode 100644\nnew mode 100755\n'.format("\\303\\251" * (size // 17))
    ),
    "quotes without an end": lambda size: 'diff --git "' + "\\\\" * (size // 2) + "\nold mode 100644\n",
    "quotes and spaces": lambda size: "diff --git " + '" "' * (size // 3) + "\nold mode 100644\n",
    "many spaces": lambda size: "diff --git a/x" + " " * (size // 2) + "y b/x" + " " * (size // 2) + "z\n",
    "many new files": _files(lambda i: created(f"d/f{i}.py", ["x = 1"])),
    "many edited files": _files(lambda i: edited(f"f{i}.txt", ["x"], ["y"])),
    "many tests that move": _files(
        lambda i: f"diff --git a/{i} b/t{i}\nsimilarity index 100%\nrename from {i}\nrename to t{i}\n"
    ),
    "many modes": _files(lambda i: f"diff --git a/{i} b/{i}\nold mode 100644\nnew mode 120000\n"),
    "many folders": _files(lambda i: edited("/".join("ab" * 40) + f"/{i}", ["x"], ["y"])),
    "the same file again and again": _files(lambda _: edited("x.py", ["x"], ["y"])),
    "many extended headers": lambda size: (
        "diff --git a/x b/x\n" + "new mode 100644\n" * (size // 16)
    ),
    "many renames of one file": lambda size: (
        "diff --git a/x b/y\n" + "rename from x\nrename to y\n" * (size // 27)
    ),
    "many hunks": _hunks,
    "lines before a file": lambda size: "--- a/x\n" * (size // 8) + edited("x.py", ["x"]),
    "a binary of many lines": lambda size: (
        "diff --git a/x.bin b/x.bin\nnew file mode 100644\nindex 0..1\nGIT binary patch\nliteral 9\n"
        + "A00\n" * (size // 4) + "\n"
    ),
    "many binaries": _files(
        lambda i: (
            f"diff --git a/{i} b/{i}\nindex 0..1 100644\nGIT binary patch\nliteral 9\nAc$\n\nliteral 0\n\n"
        )
    ),
    "compressed blank lines": lambda size: compressed("x.py", b"\n" * size),
    "compressed lines": lambda size: compressed("x.py", b"a\n" * (size // 2)),
    "compressed code": lambda size: compressed("conftest.py", b"items[pytest_, .stats[\n" * (size // 23)),
    "compressed nothing": lambda size: compressed("x", bytes(size)),
    "blank lines": _lines(lambda _: ""),
    "lines of spaces": _repeated(" "),
    "a link with many lines": lambda size: created("x", _fill(lambda _: "a/" * 100, size)).replace(
        "100644", "120000"
    ),
    # code that is not new
    "not new, all different": _lines(lambda i: f"pytest.skip('{i}')", before=True),
    "not new, by internals": _lines(lambda i: f"a = '_pytest.m{i}'", before=True),
    "not new, by hooks": _lines(
        lambda i: f"def pytest_configure(): import x{i}, pytest_unconfigure", before=True
    ),
    "not new, by entry points": _lines(lambda i: f"pytest11 {i}", before=True),
    "not new, by changed tests": _lines(lambda i: f"tests.a{i} = 1", before=True),
    "nearly not new": lambda size: edited(
        "x.py",
        _fill(lambda i: f"_pytest.{'a' * 60}{i} = 1", size // 2),
        ["".join(["_pytest.", "a" * 390])] * (size // 800),
    ),
    "new only at their ends": lambda size: edited(
        "conftest.py",
        _fill(lambda i: f"pytest11 {'ab' * 30}{i}", size // 2),
        ["pytest11" + "ab" * 190] * (size // 800),
    ),
    # signs in code
    "open without an end": _repeated("open("),
    "open with quotes": _repeated("open('"),
    "open that only reads": _repeated("open('',"),
    "open, and tests named": lambda size: edited(
        "x.py", ["'test_a.py'", *_fill(lambda _: "open('w'" * 49, size)]
    ),
    "an equality without an end": _repeated("def __eq__("),
    "an equality that spans": _lines(lambda _: "def __eq__(" + "a" * 190 + ")" + "b" * 190),
    "an equality of colons": _repeated("__eq__:lambda"),
    "a lambda without an end": _repeated("__eq__ = lambda x"),
    "words of a summary": _repeated("'test_a "),
    "dots of a summary": _repeated("'test_a ..."),
    "a count of passed": _repeated('"1 passed,'),
    "digits": _repeated('"1'),
    "digits alone": lambda size: edited("x.py", _fill(lambda _: '"' + "1" * 398, size)),
    "equals signs": lambda size: edited("x.py", _fill(lambda _: '"' + "=" * 398, size)),
    "quotes and equals signs": _repeated('"='),
    "passed in a path": _repeated('"PASSED a/'),
    "a path of a test": lambda size: edited("x.py", _fill(lambda _: '"test_' + "a*" * 190, size)),
    "quotes of tests": _repeated("'test_"),
    "attributes": _lines(lambda _: "a." * 199),
    "subscripts": _lines(lambda _: "tests.a" + "[a]" * 130),
    "open subscripts": _lines(lambda _: "tests.a" + "[" * 390),
    "frames": _repeated("_getframe f_locals["),
    "f_globals without an end": _repeated("f_globals["),
    "modules": _repeated("sys.modules["),
    "modules by get": _repeated("sys.modules.get("),
    "setattr": _repeated("setattr("),
    "setattr over lines": _lines(lambda i: "setattr(" if i % 50 == 0 else ""),
    "setattr and spaces": _lines(lambda _: "setattr(" + " " * 390),
    "pytest in": _lines(lambda _: "'pytest'" + " " * 390),
    "pytest parts": _lines(lambda _: "pytest" + ".a" * 190),
    "cases": _repeated("TestCase.assert"),
    "imports of hooks": _repeated("import "),
    "imports and near hooks": _repeated("import pytest_"),
    "near hooks": _repeated("pytest_runtest_", "conftest.py"),
    "near names": _repeated("specname=", "conftest.py"),
    "def after def": _repeated("async def ", "conftest.py"),
    "spaces and def": _lines(lambda _: "async" + " " * 380 + "def", "conftest.py"),
    "items": _repeated("items[", "conftest.py"),
    "stats": _repeated(".stats[", "conftest.py"),
    "items sorted": _lines(lambda _: "items[:] =" + " " * 380 + "sorted", "conftest.py"),
    "ignored without an end": _lines(lambda _: "collect_ignore", "conftest.py"),
    "ignored over long lines": _lines(lambda i: "collect_ignore" + "a" * 380 * (i % 2), "conftest.py"),
    "ignored, not new": lambda size: edited(
        "conftest.py",
        _fill(lambda i: f"collect_ignore = ['{i}']", size // 2),
        _fill(lambda i: f"collect_ignore = ['{i}']", size // 2),
    ),
    "ignored patterns": lambda size: edited(
        "tests/conftest.py", [f"collect_ignore = [{lines}]" for lines in _fill(lambda i: "'*a*b*c*d',", size)]
    ),
    "ignored patterns in one list": _files(
        lambda i: edited(
            "tests/conftest.py", ["collect_ignore = [", *(f"'*{i}{j}*b*c'," * 20 for j in range(48)), "]"]
        )
    ),
    "ignored, many files": _files(
        lambda i: edited("tests/conftest.py", [f"collect_ignore = ['{i}*', '*{i}a*a*a*a']"])
    ),
    "comments": _repeated("# "),
    "spaces and comments": lambda size: edited("x.py", _fill(lambda _: " " * 398 + "x", size)),
    "docstrings": _lines(lambda i: '"""' + "x" * (i % 2)),
    "docstrings that stay open": lambda size: "".join(
        edited("x.py", ['"""', *_fill(lambda _: "x", 600)]) for _ in range(size // 1000)
    ),
    # tests
    "skips of own tests": _own_tests,
    "skips below a test": _skips_below,
    "skips that are not new": _trusted_skips,
    "tests without an end": _lines(lambda _: "def test_0(" + "):" * 190, _TEST),
    "tests of parentheses": _lines(lambda _: "def test_0(" + ")" * 380, _TEST),
    "tests over a body": _lines(lambda i: "def test_0(" + ")" * 380 if i % 2 else "pass", _TEST),
    "tests of colons": _lines(lambda _: "def test_0()" + ": " * 190, _TEST),
    "empty bodies": _lines(lambda _: "    pass", _TEST),
    "definitions": _lines(lambda i: f"def test_n{i}(): pytest.skip()", _TEST),
    "async": _repeated("async ", _TEST),
    "spaces in tests": _repeated(" ", _TEST),
    "many edited tests": _files(lambda i: edited(f"tests/part{i % 20}/test_{i % TESTS}.py", ["x"], ["y"])),
    "the same test again and again": _files(
        lambda _: edited(_TEST, ["    pytest.skip()"], ["    pytest.skip()"])
    ),
    "skips of many tests": _files(
        lambda i: edited(f"tests/part{i % 20}/test_{i % TESTS}.py", [f"@skip{i}"], [f"@skip{i}"])
    ),
    # configuration
    "options": _lines(lambda i: f"x{i} = {i}", "setup.cfg"),
    "words of an option": _lines(lambda i: f"    --ignore=a{i}", "pytest.ini"),
    "patterns of an option": lambda size: edited(
        "pytest.ini", ["[pytest]", "python_files =", *_fill(lambda i: f"    *{i}*a*b.py", size)]
    ),
    "globs of options": lambda size: edited(
        "pytest.ini", ["[pytest]", "addopts =", *_fill(lambda i: f"    --ignore-glob=*{i}*a*b", size)]
    ),
    "functions of an option": lambda size: edited(
        "pytest.ini", ["[pytest]", "python_functions =", *_fill(lambda i: f"    a{i}*b*c", size)]
    ),
    "folders of an option": lambda size: edited(
        "pytest.ini", ["[pytest]", "norecursedirs =", *_fill(lambda i: f"    a{i}*b*c", size)]
    ),
    "test paths of an option": lambda size: edited(
        "pytest.ini", ["[pytest]", "testpaths =", *_fill(lambda i: f"    a{i}*b*c", size)]
    ),
    "many configurations": _files(
        lambda i: edited("pytest.ini", ["[pytest]", f"python_files = *{i} *.py", f"norecursedirs = *{i}"])
    ),
    "options of equals signs": _repeated("= ", "setup.cfg"),
    "spaces in options": _lines(lambda _: " " * 390 + "a", "setup.cfg"),
    "dots in options": _lines(lambda _: "a." * 190, "setup.cfg"),
    "attributes of git": _repeated(" filter", ".gitattributes"),
    "spaces in attributes": _repeated(" ", ".gitattributes"),
    "words of git": lambda size: edited("a/.gitattributes", _fill(lambda _: "a filter=" * 44, size)),
    # everything at once
    "many names": _files(lambda i: created(f"src/{i}/conftest.py", ["import pytest"])),
    "many environments": _files(lambda i: created(f"e{i}/pyvenv.cfg", ["x"])),
}  # fmt: skip


def _text(piece: str) -> Make:
    return lambda size: piece * (size // len(piece))


_COMMANDS = (
    ";a=", "a=b ", "; a=b", ";a=b c", "(", " ", ";", "\n", "do ", "then time exec ", "timeout a ", "xargs\n",
    "git ", ";git -c a ", ";git --a ", ";git -a", ";git -c ", "do git log ", "do git log -",
    "do git cat-file ", ";git log a", "urlopen", "urlopen.a", "requests.", "requests.github", "curl a.",
    "do curl a", "do curl aa.",
    "do wget http:", "do git a ", "do git clonea ", ";pip install -a", ";pip install --a=b ", "do pip ",
    ";python -m ", "do python3.1", "do find ", "do find / ", "do ls a", "do ls .tar", "do ssh ", "/proc/1",
    "do ping --version ", "do ping test ", "/proc/1/", ".git/", "cat <<A\n", "cat << A ", "cat cat <<A a\n",
    "cat ", "tee <<-", "cat <<'A'\nA\n", "cat <<A\n A", "a.", "github.com", "curl github.co ", "a-a.",
    "https://", "pypi.org/", "pypi.", "<<A<<A", "<<A\n", "\t", "\tA\n", "do cat <<A; git log\nA\n", "x\n",
    "do curl github.com\n", "a=\n", "do\n", "do env time sudo ", "{a=b",
)  # fmt: skip
_REPLIES = (
    "```bash\n", "```bash\n\n", "```bash ", "```bash", "```", "\n```", "\n", "<", "<function=",
    "<function=a>",
    "<tool_call>", "</tool_call>", "<function=a><parameter=", "<function=a><parameter=a>", "</function>",
    "<parameter=a></parameter>", "<function=a></function>", "```mswea_bash_command\n",
)  # fmt: skip
COMMANDS: dict[str, Make] = {piece: _text(piece) for piece in _COMMANDS}
REPLIES: dict[str, Make] = {
    **{piece: _text(piece) for piece in _REPLIES},
    "a block of line breaks": lambda size: "```bash" + "\n" * size,
    "a call with many parameters": lambda size: f"<function=a>{'<parameter=' * (size // 12)}</function>",
}
