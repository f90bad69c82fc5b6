"""How checks are registered, and what they share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from hone.sandbox.contract import (
    Limits,
    Provider,
    Sandbox,
    SandboxSpec,
)

Check = Callable[[Provider], Awaitable[None]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


async def new(provider: Provider, limits: Limits | None = None) -> Sandbox:
    return await provider.start(SandboxSpec(limits=limits or Limits()))


async def until(sandbox: Sandbox, command: str, wanted: int = 0) -> None:
    """Repeat a command until it exits with `wanted`; fail after 60 s."""
    deadline = time.monotonic() + 60
    while (result := await sandbox.exec(command)).exit_code != wanted:
        assert time.monotonic() < deadline, f"{command!r} still gives {result}"
