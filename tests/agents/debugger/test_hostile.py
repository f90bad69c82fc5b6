"""Programs that forge, hang, flood, fork, die or attack the debugger, in a real sandbox."""

from __future__ import annotations

import pytest

from tests.agents.debugger.session import ToolSession, run_session

pytestmark = pytest.mark.sandbox

AGAIN = (
    "Reached the end of the program. Restarting the debugging session.\n> /testbed/program.py(1)<module>()"
)


def test_forged_debugger_output_changes_nothing():
    code = (
        "print('(Pdb) ')\nprint('> /testbed/program.py(99)fake()', flush=True)\n"
        "print('(Pdb) The program exited via sys.exit(). Exit status: 0')\nx = 1\n"
    )

    async def scenario(tools: ToolSession) -> None:
        await tools.script(code)
        for line in (2, 3, 4):
            assert f"Current frame:\nprogram.py({line})<module>()\n" in await tools.pdb("n")
        assert await tools.pdb("p 'still here'") == "Pdb command output:\n'still here'\n"

    run_session(scenario)


def test_session_continues_after_any_exit():
    programs = [
        ("import os\nprint('last words')\nos._exit(7)\n", "last words\nThe program left with exit code 7"),
        ("import os\nos.kill(os.getpid(), 9)\n", "The program left with exit code 137"),
        ("import os\nos.closerange(3, 4096)\nx = 1\n", "without its debugger"),
        ("import sys\nsys.exit(3)\n", "The program exited via sys.exit(). Exit status: 3\n"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt\nUncaught exception."),
        ("import sys\nsys.settrace(None)\nprint('free')\n", "free\n"),
        ("import sys\nsys.stdout.close()\nx = 1\n", ""),
        ("input()\n", "EOFError: EOF when reading a line"),
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\xfe\\n')\n", "\ufffd\0\ufffd\n"),
        ("import os\nos.write(1, 'é✓'.encode()); os.write(2, b' err')\n", "é✓ err\n"),
    ]

    async def scenario(tools: ToolSession) -> None:
        for code, expected in programs:
            await tools.script(code)
            seen = await tools.pdb("c")
            assert expected in seen
            if AGAIN not in seen:  # it waits where it failed
                seen = await tools.pdb("c")
            assert AGAIN in seen
            assert await tools.pdb("p 1") == "Pdb command output:\n1\n"

    run_session(scenario)


@pytest.mark.full
def test_endless_program_is_interrupted():
    async def scenario(tools: ToolSession) -> None:
        await tools.script("import time\nn = 0\nwhile True:\n    n += 1\n")
        with tools.short_timeout(2.0):
            seen = await tools.pdb("c")
        assert "The command `c` has timed out after 2 s. The program was interrupted." in seen
        assert "\nCurrent frame:\nprogram.py(" in seen
        assert await tools.pdb("p n > 10") == "Pdb command output:\nTrue\n"
        await tools.pdb("b 4")
        assert "program.py(4)<module>()" in await tools.pdb("c")
        with tools.short_timeout(2.0):
            assert "*** KeyboardInterrupt" in await tools.pdb("p [0 for _ in iter(int, 1) if _]")
        assert await tools.pdb("p n > 10") == "Pdb command output:\nTrue\n"
        await tools.script("import time\ntime.sleep(60)\n")
        await tools.pdb("n")
        with tools.short_timeout(2.0):
            assert "program.py(2)<module>()" in await tools.pdb("c")

    run_session(scenario)


@pytest.mark.full
def test_uninterruptible_program_is_killed():
    code = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass\n"

    async def scenario(tools: ToolSession) -> None:
        await tools.script(code)
        before = await tools.processes()
        with tools.short_timeout(2.0):
            seen = await tools.pdb("c")
        assert "has timed out after 2 s. The program could not be interrupted and was killed." in seen
        assert AGAIN in seen
        assert await tools.processes() == before

    run_session(scenario)


@pytest.mark.full
def test_flood_of_output_is_capped():
    async def scenario(tools: ToolSession) -> None:
        await tools.script(
            "import os\nos.write(1, b'first')\nfor i in range(2000):\n    os.write(1, b'x' * 9999)\n"
        )
        seen = await tools.pdb("c")
        assert "first" in seen
        assert "bytes omitted" in seen
        assert len(seen) < 12_000
        seen = await tools.pdb("p 'y' * 10**7")
        assert "bytes omitted" in seen
        assert len(seen) < 12_000
        await tools.script("while True: print('y' * 1000)\n")
        with tools.short_timeout(2.0):
            assert "has timed out" in await tools.pdb("c")

    run_session(scenario)


def test_forks_run_without_a_debugger_and_are_killed():
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(60)\n"
        "    breakpoint()\n    print('child')\n    os._exit(0)\nos.wait()\nprint('parent')\nos._exit(3)\n"
    )

    async def scenario(tools: ToolSession) -> None:
        idle = await tools.processes()
        await tools.script(code)
        await tools.pdb("b 6")
        seen = await tools.pdb("c")
        assert "child\nparent\nThe program left with exit code 3" in seen  # seen at once
        assert "timed out" not in seen
        assert AGAIN in seen
        assert await tools.processes() == idle + 1  # the program that was started again
        await tools.use("eval")
        assert await tools.processes() == idle

    run_session(scenario)


def test_fork_bomb_ends_with_its_program():
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor _ in range(3):\n    if os.fork() == 0:\n"
        "        while True:\n            if libc.fork() > 0: libc._exit(0)\nos._exit(3)\n"
    )

    async def scenario(tools: ToolSession) -> None:
        idle = await tools.processes()
        for _ in range(3):
            await tools.script(code)
            assert "The program left with exit code 3" in await tools.pdb("c")
            await tools.use("eval")
            assert await tools.processes() == idle

    run_session(scenario)


def test_killed_server_is_restarted():
    async def scenario(tools: ToolSession) -> None:
        await tools.script("import os\nos.kill(os.getppid(), 9)\nimport time; time.sleep(60)\n")
        seen = await tools.pdb("c")
        assert seen.startswith("Failure calling pdb:\nThe debugger was lost: ")
        assert "import os" in await tools.use("view", path="program.py")
        assert "PDB session started with" in await tools.pdb("start", "python", "app.py")

    run_session(scenario)


def test_program_cannot_read_the_secret():
    code = """import glob, os
parent = os.getppid()
for path in ('mem', 'environ', 'fd/0', 'maps'):
    try:
        open(f'/proc/{parent}/{path}', 'rb').read(1)
        print('readable:', path)
    except OSError as error:
        pass
print('looked', [name for name in os.environ if 'SECRET' in name.upper()])
print(open(f'/proc/{parent}/cmdline').read().replace(chr(0), ' '))
"""

    async def scenario(tools: ToolSession) -> None:
        await tools.script(code)
        printed = (await tools.pdb("c")).partition("Reached the end")[0]
        assert printed.startswith("Pdb command output:\nlooked []\n")  # and nothing was readable
        assert printed.endswith("hone_debug_server.py \n")

    run_session(scenario)


def test_alias_of_a_refused_command_is_refused():
    async def scenario(tools: ToolSession) -> None:
        await tools.pdb("start", "python", "app.py")
        await tools.pdb("alias away q")
        assert "is not available here" in await tools.pdb("away")
        assert await tools.pdb("p 1") == "Pdb command output:\n1\n"

    run_session(scenario)


def test_eval_reports_how_pytest_ended():
    tests = "def test_a():\n    assert 0\n"

    async def scenario(tools: ToolSession) -> None:
        assert (await tools.use("eval")).endswith("1 failed\npytest ended with exit code 1.")
        await tools.use("edit", path="test.py", new_code="import os\nos._exit(0)\n")
        assert await tools.use("eval") == "\npytest ended with exit code 0."
        await tools.use("edit", path="test.py", new_code="import time\ndef test_a():\n    time.sleep(1000)\n")
        with tools.short_timeout(3.0):
            assert (await tools.use("eval")).endswith("The tests have timed out after 3 s and were killed.")
        await tools.use("edit", path="test.py", new_code="x = 1\n")
        assert (await tools.use("eval")).endswith("no tests ran\npytest ended with exit code 5.")

    run_session(scenario, {"test.py": tests})
