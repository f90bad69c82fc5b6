"""The tool pdb in a real sandbox: the exact observation of each command."""

from __future__ import annotations

import pytest

from tests.agents.debugger.session import APP, ToolSession, run_session

pytestmark = pytest.mark.sandbox

STARTED = """PDB session started with: python -m pdb app.py
> /testbed/app.py(1)<module>()
-> import sys
Breakpoints:
No breakpoints are set.

Context around the current frame:
   1  -> import sys
   2     
   3     
   4     def scale(values, factor):
   5         total = 0
   6         for value in values:
   7             total += value * factor
   8         return total
   9     
  10     
  11     if __name__ == "__main__":
"""  # noqa: W291
HIT = """Pdb command output:
> /testbed/app.py(7)scale()
-> total += value * factor

Current frame:
app.py(7)scale()

Context around the current frame:
   2     
   3     
   4     def scale(values, factor):
   5         total = 0
   6         for value in values:
   7 B->         total += value * factor
   8         return total
   9     
  10     
  11     if __name__ == "__main__":
  12         print(scale([1, 2, 3], 2))
"""  # noqa: W291
ENDED = """Pdb command output:
12
Reached the end of the program. Restarting the debugging session.
> /testbed/app.py(1)<module>()
-> import sys
"""
NOTHING_RUNS = "Failure calling pdb:\nPDB session is not running. Please start it first using command='start'"


def test_output_is_that_of_pdb():
    async def scenario(tools: ToolSession) -> None:
        assert await tools.pdb("start", "python", "app.py") == STARTED
        assert await tools.pdb("b app.py:7, value > 1") == (
            "Pdb command output:\nBreakpoint 1 at /testbed/app.py:7\n\n"
            "All breakpoints:\nline 7 in app.py (if value > 1)\n"
        )
        assert await tools.pdb("c") == HIT
        assert await tools.pdb("p value, total") == "Pdb command output:\n(2, 2)\n"
        assert await tools.pdb("n") == (
            "Pdb command output:\n> /testbed/app.py(6)scale()\n-> for value in values:\n\n"
            "Current frame:\napp.py(6)scale()\n"
        )
        assert await tools.pdb("w") == (
            "Pdb command output:\n  /testbed/app.py(12)<module>()\n-> print(scale([1, 2, 3], 2))\n"
            "> /testbed/app.py(6)scale()\n-> for value in values:\n"
        )
        assert await tools.pdb("b") == "Breakpoints:\nline 7 in app.py (if value > 1)\n"
        assert await tools.pdb("cl app.py:7") == (
            "Pdb command output:\nDeleted breakpoint 1 at /testbed/app.py:7\n\n"
            "All breakpoints:\nNo breakpoints are set.\n"
        )
        assert (await tools.pdb("c")).startswith(ENDED)
        assert not tools.failed
        assert await tools.pdb("n") == (
            "Pdb command output:\n> /testbed/app.py(4)<module>()\n-> def scale(values, factor):\n\n"
            "Current frame:\napp.py(4)<module>()\n"
        )

    run_session(scenario)


COMMANDS = {
    "a": "values = [1, 2, 3]\nfactor = 2",
    "args": "values = [1, 2, 3]\nfactor = 2",
    "p factor": "2",
    "pp values": "[1, 2, 3]",
    "p 'a;b'": "'a;b'",
    "p nothing": "*** NameError: name 'nothing' is not defined",
    "whatis values": "<class 'list'>",
    "display factor": "display factor: 2",
    "!factor = 5": "",
    "factor": "5",
    "l 1, 2": "  1  \timport sys\n  2  \t",
    "ll": "  4  \tdef scale(values, factor):",
    "condition 1 factor > 3": "New condition set for breakpoint 1.",
    "tbreak 8": "Breakpoint 2 at /testbed/app.py:8",
    "s": "> /testbed/app.py(6)scale()\n-> for value in values:",
    "unt 7": "> /testbed/app.py(7)scale()\n-> total += value * factor",
    "u": "> /testbed/app.py(12)<module>()\n-> print(scale([1, 2, 3], 2))",
    "d": "> /testbed/app.py(7)scale()\n-> total += value * factor",
    "r": "Deleted breakpoint 2 at /testbed/app.py:8\n> /testbed/app.py(8)scale()\n-> return total",
    "n": "--Return--\n> /testbed/app.py(8)scale()->30\n-> return total",
}


def test_each_command_of_pdb_works():
    async def scenario(tools: ToolSession) -> None:
        await tools.pdb("start", "python", "app.py")
        await tools.pdb("b scale")
        await tools.pdb("c")
        for command, text in COMMANDS.items():
            assert (await tools.pdb(command)).startswith(f"Pdb command output:\n{text}")

    run_session(scenario)


def test_invalid_command_is_answered_with_an_error():
    async def scenario(tools: ToolSession) -> None:
        assert (await tools.pdb("n")).startswith(NOTHING_RUNS)
        assert await tools.pdb(" ") == "Failure calling pdb:\nEmpty commands are not allowed."
        assert "'file' parameter is REQUIRED" in await tools.pdb("start", "python")
        assert "'runner' parameter is REQUIRED" in await tools.pdb("start", None, "app.py")
        assert "REQUIRED with command='start'" in await tools.pdb("start")
        assert tools.failed
        assert await tools.pdb("start", "python", "none.py") == (
            "Failure calling pdb:\n`none.py` does not exist."
        )
        await tools.pdb("start", "python", "app.py")
        for command in ("q", "quit", "exit", "interact", "debug f()", "commands 1"):
            text = await tools.pdb(command)
            assert text.startswith(f"Invalid pdb command: {command}\n*** The command ")
            assert tools.failed
        assert await tools.pdb("b app.py:4") == (
            "Invalid pdb command: b app.py:4\n*** Line 4 is a function definition: 'def scale(values, "
            "factor):'. It runs when the function is defined, not when it is called. Try line 5 instead, the "
            "first statement inside it."
        )
        assert "Line 3 is a blank line. Try line 4 instead" in await tools.pdb("b app.py:3")
        assert "Line 99 is out of range" in await tools.pdb("b 99")
        assert "'none.py' not found" in await tools.pdb("b none.py:1")
        assert await tools.pdb("p 1\np 2; p 3") == "Pdb command output:\n*** SyntaxError: invalid syntax\n"
        assert await tools.pdb("n; n") == (
            "Multiple commands are not supported. Only the first command will be executed.\n"
            "Pdb command output:\n> /testbed/app.py(4)<module>()\n-> def scale(values, factor):\n\n"
            "Current frame:\napp.py(4)<module>()\n"
        )

    run_session(scenario)


def test_breakpoints_survive_edits_and_new_sessions():
    async def scenario(tools: ToolSession) -> None:
        await tools.pdb("start", "python", "app.py")
        await tools.pdb("b scale")
        await tools.pdb("b app.py:7, value == 2")
        await tools.use("rewrite", path="app.py", start=1, end=1, new_code="import sys\n\nUNIT = 1\n")
        assert "B    7     total = 0" in await tools.use("view", path="app.py")
        hit = await tools.pdb("c")
        assert hit.startswith(
            "The code was edited: the program was started again before this command.\n"
            "Pdb command output:\n> /testbed/app.py(7)scale()\n-> total = 0\n"
        )
        assert "> /testbed/app.py(9)scale()" in await tools.pdb("c")
        assert await tools.pdb("p value") == "Pdb command output:\n2\n"
        await tools.use("rewrite", path="app.py", start=7, end=7, new_code="    total = 10")
        assert await tools.pdb("b") == (
            "The code was edited: the program was started again before this command.\n"
            "Breakpoints:\nline 9 in app.py (if value == 2)\n"
        )
        again = await tools.pdb("start", "pytest", "tests/test_app.py")
        assert "Breakpoints:\nline 9 in app.py (if value == 2)\n" in again
        assert await tools.pdb("cl") == "All breakpoints have been cleared.\n"
        assert "No breakpoints are set." in await tools.pdb("restart")
        await tools.pdb("tbreak scale")
        assert "app.py(7)scale()" in await tools.pdb("c")
        assert await tools.pdb("b") == "Breakpoints:\nNo breakpoints are set.\n"

    run_session(scenario)


def test_debugger_stops_at_the_first_line_of_a_test():
    async def scenario(tools: ToolSession) -> None:
        text = await tools.pdb("start", "pytest", "tests/test_app.py")
        assert text.startswith(
            "PDB session started with: python -m pdb -m pytest -sq tests/test_app.py\n"
            "> /testbed/tests/test_app.py(5)test_scale()\n-> assert scale([1, 2], 3) == 9\nBreakpoints:\n"
        )
        assert (await tools.pdb("s")).startswith("Pdb command output:\n--Call--\n> /testbed/app.py(4)scale()")
        assert "1 failed, 1 passed" in await tools.pdb("c")
        text = await tools.pdb("start", "pytest", "tests/test_app.py::test_wrong")
        assert text.startswith(
            "PDB session started with: "
            "python -m pytest -sq tests/test_app.py::test_wrong --trace --tb=short\n"
            "> /testbed/tests/test_app.py(9)test_wrong()\n"
        )
        assert "AssertionError: assert 1 == 2" in await tools.pdb("n")
        assert "--Return--" in await tools.pdb("n")
        ended = await tools.pdb("n")  # nothing of pytest's own is stepped through
        assert "1 failed" in ended
        assert "Reached the end of the program. Restarting the debugging session." in ended

    run_session(scenario)


def test_debugger_stops_in_test_classes_and_parameters():
    tests = (
        "import unittest\nimport pytest\n\nclass TestOld(unittest.TestCase):\n    def test_old(self):\n"
        "        x = 1\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_each(n):\n    assert n\n"
    )

    async def scenario(tools: ToolSession) -> None:
        assert "(6)test_old()" in await tools.pdb("start", "pytest", "test_t.py::TestOld::test_old")
        assert "(10)test_each()" in await tools.pdb("start", "pytest", "test_t.py::test_each")
        assert "(10)test_each()" in await tools.pdb("c")
        assert await tools.pdb("p n") == "Pdb command output:\n2\n"

    run_session(scenario, {"test_t.py": tests})


def test_uncaught_exception_is_inspected_where_it_was_raised():
    async def scenario(tools: ToolSession) -> None:
        await tools.script("def f(x):\n    return 1 / x\n\nf(0)\n")
        text = await tools.pdb("c")
        assert text.startswith(
            'Pdb command output:\nTraceback (most recent call last):\n  File "/testbed/pro'
        )
        assert "ZeroDivisionError: division by zero\nUncaught exception. Entering post mortem" in text
        assert "Current frame:\nprogram.py(2)f()\n" in text
        assert await tools.pdb("p x") == "Pdb command output:\n0\n"
        assert "program.py(4)<module>()" in await tools.pdb("u")
        assert "Reached the end of the program." in await tools.pdb("c")

    run_session(scenario)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("x = '\udc80'\n", "SyntaxError"),
    ],
)
def test_program_with_a_syntax_error_reports_it(code: str, text: str):
    async def scenario(tools: ToolSession) -> None:
        seen = await tools.pdb("start", "python", "bad.py")
        assert seen.startswith("Failure calling pdb:\n")
        assert text in seen
        assert (await tools.pdb("n")).startswith(NOTHING_RUNS)

    run_session(scenario, {"bad.py": code})


def test_missing_tests_and_missing_pytest_are_errors():
    async def scenario(tools: ToolSession) -> None:
        seen = await tools.pdb("start", "pytest", "tests/test_app.py::test_none")
        assert seen.startswith("Failure calling pdb:\n")
        assert "not found: /testbed/tests/test_app.py::test_none" in seen
        await tools.sandbox.write("pytest.py", b"raise ModuleNotFoundError(\"No module named 'pytest'\")\n")
        seen = await tools.pdb("start", "pytest", "tests/test_app.py")
        assert seen.startswith("Failure calling pdb:\nModuleNotFoundError: No module named 'pytest'")
        assert "pytest ended with exit code 1" in await tools.use("eval")

    run_session(scenario)


def test_breakpoint_in_the_code_stops_there():
    async def scenario(tools: ToolSession) -> None:
        await tools.script("import pdb\nbreakpoint()\nx = 1\npdb.set_trace()\ny = 2\n")
        assert "program.py(3)<module>()" in await tools.pdb("c")
        assert "program.py(5)<module>()" in await tools.pdb("c")
        tests = "def test_it():\n    import pdb\n    x = 1\n    pdb.set_trace()\n    assert x\n"
        await tools.use("edit", path="test_it.py", new_code=tests)
        await tools.pdb("start", "pytest", "test_it.py")
        assert "test_it.py(5)test_it()" in await tools.pdb("c")

    run_session(scenario, {"app.py": APP})


def test_edit_of_a_module_takes_effect_despite_cached_code():
    async def scenario(tools: ToolSession) -> None:
        for operator in "+-*":
            await tools.use("edit", path="module.py", new_code=f"def f():\n    return 7 {operator} 3\n")
            await tools.sandbox.exec(
                "touch -d @1700000000 module.py"
            )  # cached code is recognised by the time alone
            await tools.pdb("start", "pytest", "test_module.py")
            assert await tools.pdb("p f()") == f"Pdb command output:\n{eval(f'7 {operator} 3')}\n"
        assert (await tools.use("eval")).endswith("1 failed\npytest ended with exit code 1.")

    run_session(
        scenario, {"test_module.py": "from module import f\n\n\ndef test_f():\n    assert f() == 4\n"}
    )
