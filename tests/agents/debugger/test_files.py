"""The file tools and eval in a real sandbox."""

from __future__ import annotations

import pytest

from tests.agents.debugger.session import FILES, ToolSession, run_session

pytestmark = pytest.mark.sandbox


def test_view_numbers_lines():
    async def scenario(tools: ToolSession) -> None:
        assert await tools.use("view", path="app.py", start=4, end=5) == (
            "Viewing `app.py`, lines 4-5 of 12 total lines.\n\n"
            "```\n     4 def scale(values, factor):\n     5     total = 0\n```\n\n"
        )
        await tools.pdb("start", "python", "app.py")
        await tools.pdb("b app.py:5")
        assert await tools.use("view", path="app.py", start=4, end=5) == (
            "Viewing `app.py`, lines 4-5 of 12 total lines. B indicates breakpoint before a certain line of "
            "code.\n\n```\n     4 def scale(values, factor):\nB    5     total = 0\n```\n\n"
        )
        plain = await tools.use(
            "view", path="app.py", start=4, end=5, include_line_numbers_and_breakpoints=False
        )
        assert "```\ndef scale(values, factor):\n    total = 0\n```" in plain
        long = await tools.use("view", path="long.txt")
        assert long.startswith("Viewing `long.txt`, lines 1-110 of 300 total lines.")
        assert long.endswith("```\n\n\n... (truncated, showing first 110 lines of the selected range)\n")
        assert "lines 200-300 of 300" in await tools.use("view", path="long.txt", start=200)
        assert await tools.use("view", path="empty.py") == "The file `empty.py` is empty."
        assert await tools.use("view", path="tests") == "/testbed/tests\n|-- test_app.py"

    files = {"long.txt": "".join(f"{n}\n" for n in range(300)), "empty.py": ""}
    run_session(scenario, {**FILES, **files})


def test_view_of_an_unreadable_file_is_an_error():
    async def scenario(tools: ToolSession) -> None:
        await tools.sandbox.exec("mkfifo pipe; ln -s /dev/zero zero; head -c 20000000 /dev/zero > big")
        assert await tools.use("view", path="none.py") == (
            "View failed. Error message:\n`none.py`: No such file or directory."
        )
        assert tools.failed
        for path in ("pipe", "zero", "big", "binary.bin"):
            assert (await tools.use("view", path=path)).startswith("View failed. Error message:\n`")
        assert "Invalid start index: `99`. It should be between 1 and 12." in await tools.use(
            "view", path="app.py", start=99
        )
        assert "start index `5` is greater than end index `3`" in await tools.use(
            "view", path="app.py", start=5, end=3
        )
        assert await tools.use("view", path=" ") == "Invalid file path. Please specify a valid file path."

    run_session(scenario, {**FILES, "binary.bin": "a\0b"})


def test_rewrite_replaces_lines_and_shows_the_diff():
    async def scenario(tools: ToolSession) -> None:
        assert await tools.use(
            "rewrite", path="app.py", start=7, end=7, new_code="        total += value"
        ) == (
            "The file `app.py` has been updated successfully.\n\nDiff:\n\n--- original\n+++ current\n"
            "@@ -4,7 +4,7 @@\n def scale(values, factor):\n     total = 0\n     for value in values:\n"
            "-        total += value * factor\n+        total += value\n     return total\n \n \n"
        )
        assert (await tools.sandbox.read("app.py")).count(b"\n") == 12
        await tools.use("rewrite", path="app.py", start=1, end=3, new_code="")
        await tools.use("rewrite", path="app.py", start=99, new_code="# the end\n")
        text = (await tools.sandbox.read("app.py")).decode()
        assert text.startswith("def scale(")
        assert text.endswith("2))\n# the end\n")
        await tools.use("rewrite", path="app.py", new_code="x = 1")
        assert await tools.sandbox.read("app.py") == b"x = 1"
        await tools.use("rewrite", path="dos.py", start=2, new_code="b = 3\nc = 4")
        assert await tools.sandbox.read("dos.py") == b"a = 1\r\nb = 3\r\nc = 4\r\n\xff\r\n"
        assert "updated successfully" in await tools.use("edit", path="new/place.py", new_code="y = 2\n")
        assert await tools.sandbox.read("new/place.py") == b"y = 2\n"

    run_session(scenario, {**FILES, "dos.py": "a = 1\r\nb = 2\r\n\udcff\r\n"})


def test_refused_rewrite_changes_nothing():
    wrong: list[tuple[dict[str, object], str]] = [
        ({"path": "none.py"}, "`none.py`: No such file or directory."),
        ({"path": "tests"}, "`tests` is not a regular file."),
        ({"path": "/etc/passwd"}, "`/etc/passwd` is outside of the working directory."),
        ({"path": "../etc/passwd"}, "is outside of the working directory."),
        ({"path": "away"}, "`away` is outside of the working directory."),
        ({"path": "app.py", "start": 3, "end": 2}, "start should be less than or equal to end"),
        ({"path": "app.py", "start": 0}, "line numbers are 1-based"),
        ({"path": "app.py", "end": 3}, "end is given without start"),
    ]

    async def scenario(tools: ToolSession) -> None:
        await tools.sandbox.exec("ln -s /etc/hostname away")
        before = (await tools.sandbox.exec("md5sum app.py tests/* /etc/hostname")).text
        for arguments, expected in wrong:
            seen = await tools.use("rewrite", new_code="x", **arguments)
            assert seen.startswith("Rewrite failed. Error message:\n")
            assert expected in seen
        assert (await tools.sandbox.exec("md5sum app.py tests/* /etc/hostname")).text == before

    run_session(scenario)


def test_grep_and_listdir():
    async def scenario(tools: ToolSession) -> None:
        assert await tools.use("grep", pattern=r"^def \w+") == (
            "Found 3 matches:\n\n=== app.py ===\n   4: def scale(values, factor):\n\n"
            "=== tests/test_app.py ===\n   4: def test_scale():\n   8: def test_wrong():"
        )
        limited = await tools.use("grep", pattern="def", path="tests/*.py", max_results=1)
        assert limited == (
            "Showing first 1 matches (search limit reached):\n\n=== tests/test_app.py ===\n"
            "   4: def test_scale():"
        )
        assert await tools.use("grep", pattern="zebra") == (
            "No matches found for pattern 'zebra' in repository."
        )
        assert await tools.use("grep", pattern="x", path="app.py; touch /tmp/ran") == (
            "Grep error: `app.py; touch /tmp/ran` does not exist."
        )
        assert "is not a regular expression" in await tools.use("grep", pattern="(")
        assert await tools.use("grep", pattern="") == "Pattern cannot be empty."
        assert await tools.use("listdir", depth=2) == (
            "/testbed\n|-- app.py\n|-- tests/\n    |-- test_app.py"
        )
        assert "Depth must be 1 or greater" in await tools.use("listdir", depth=0)
        assert (await tools.use("listdir", path="app.py")).startswith("Error listing directory 'app.py':")

    run_session(scenario)


def test_eval_runs_the_visible_tests():
    async def scenario(tools: ToolSession) -> None:
        seen = await tools.use("eval")
        assert "tests/test_app.py:9: in test_wrong\n    assert scale([1], 1) == 2\n" in seen
        assert seen.endswith("1 failed, 1 passed\npytest ended with exit code 1.")
        assert tools.failed
        await tools.use("rewrite", path="tests/test_app.py", start=8, end=9, new_code="")
        assert (await tools.use("eval")).endswith("1 passed\npytest ended with exit code 0.")
        assert not tools.failed
        await tools.use(
            "edit", path="test.py", new_code="import pytest\n\n@pytest.mark.skip\ndef test_s(): ...\n"
        )
        assert (await tools.use("eval")).endswith(
            "1 skipped\npytest ended with exit code 0."
        )  # only test.py runs

    run_session(scenario)
