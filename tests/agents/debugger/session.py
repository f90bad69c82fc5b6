"""The debugger's tools on a server in a real sandbox."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from hone.agents.debugger.agent import check_arguments
from hone.agents.debugger.client import MOUNTS, Client, Listener, open_client, open_listener
from hone.agents.debugger.tools import Tools, tool_specs
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.contract import Mount
from hone.sandbox.settings import SandboxSettings

APP = """import sys


def scale(values, factor):
    total = 0
    for value in values:
        total += value * factor
    return total


if __name__ == "__main__":
    print(scale([1, 2, 3], 2))
"""
TESTS = """from app import scale


def test_scale():
    assert scale([1, 2], 3) == 9


def test_wrong():
    assert scale([1], 1) == 2
"""
FILES = {"app.py": APP, "tests/test_app.py": TESTS}
COMMAND_S = 120.0


class ToolSession:
    """A sandbox, its server and the tools on it."""

    def __init__(self, sandbox: Sandbox, listener: Listener, client: Client) -> None:
        self.sandbox, self.listener, self.client = sandbox, listener, client
        self.tools = Tools(client, "/testbed", COMMAND_S)
        self.failed = False

    async def use(self, name: str, **arguments: Any) -> str:
        spec = next(each for each in tool_specs(pdb=True) if each["name"] == name)
        text, code = await self.tools.use(name, check_arguments(spec, arguments))
        self.failed = code != 0
        return text

    async def pdb(self, command: str, runner: str | None = None, file: str | None = None) -> str:
        return await self.use("pdb", command=command, runner=runner, file=file)

    async def script(self, text: str) -> str:
        """Start a program with this text."""
        await self.use("edit", path="program.py", new_code=text)
        return await self.pdb("start", "python", "program.py")

    @contextmanager
    def short_timeout(self, timeout_s: float) -> Generator[None]:
        """Set a short time limit for commands that must exceed it."""
        self.tools.timeout_s = self.tools.pdb.timeout_s = timeout_s
        yield
        self.tools.timeout_s = self.tools.pdb.timeout_s = COMMAND_S

    async def processes(self) -> int:
        """Return the number of processes inside but process 1 and this command, zombies included."""
        listed = await self.sandbox.exec(["python3", "-c", "import os; print(os.listdir('/proc'))"])
        return sum(name.isdigit() for name in ast.literal_eval(listed.text)) - 2


@asynccontextmanager
async def open_session(
    files: Mapping[str, str] = FILES, venv: Path | None = None
) -> AsyncGenerator[ToolSession]:
    """Open a session; `venv` is the environment of its `python3`, by default the sandbox's own."""
    mounts, env = MOUNTS, {}
    if venv is not None:
        prefix = (venv / "bin" / "python").resolve().parent.parent
        mounts = (*MOUNTS, *(Mount(source=folder, target=str(folder)) for folder in (venv, prefix)))
        env = {"PATH": f"{venv}/bin:/usr/bin:/bin"}
    async with make_provider(SandboxSettings()) as provider, open_listener() as listener:
        spec = SandboxSpec(tunnel=listener.path, mounts=mounts, env=env)
        async with await provider.start(spec) as sandbox:
            for path, text in files.items():
                await sandbox.write(path, text.encode("utf-8", "surrogateescape"))
            async with open_client(sandbox, listener) as client:
                yield ToolSession(sandbox, listener, client)


def run_session(
    scenario: Callable[[ToolSession], Awaitable[None]],
    files: Mapping[str, str] = FILES,
    venv: Path | None = None,
) -> None:
    async def main() -> None:
        async with open_session(files, venv) as session:
            await scenario(session)

    asyncio.run(main())
