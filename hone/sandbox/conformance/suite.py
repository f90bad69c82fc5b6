"""The registry of checks, their helpers, and the runner for one provider.

Checks use `assert` and `pytest.raises`, and `pytest.skip` for a feature that the provider does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hone.sandbox.contract import DEFAULT_WORKDIR, ExecResult, Limits, Provider, Sandbox, SandboxSpec

Check = Callable[[Provider], Awaitable[None]]
Run = Callable[[Check], None]
CHECKS: list[Check] = []
DEFAULT_LIMITS = Limits()
_CHECK_S = 300.0  # limit of one check, on a slow machine
_WAIT_S = 60.0


def check(limits: Limits = DEFAULT_LIMITS) -> Callable[[Callable[..., Awaitable[None]]], Check]:
    """Register a check. As for a pytest test, the names of its parameters select its arguments.

    `provider` is the open provider, `folder` an empty temporary directory, and `sandbox` a sandbox with
    `limits`, which is closed after the check.
    """

    def register(function: Callable[..., Awaitable[None]]) -> Check:
        names = inspect.signature(function).parameters

        @functools.wraps(function)
        async def run(provider: Provider) -> None:
            arguments: dict[str, object] = {"provider": provider} if "provider" in names else {}
            async with contextlib.AsyncExitStack() as stack:
                if "folder" in names:
                    arguments["folder"] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                if "sandbox" in names:
                    arguments["sandbox"] = await stack.enter_async_context(await start(provider, limits))
                await function(**arguments)

        CHECKS.append(run)
        return run

    return register


async def start(provider: Provider, limits: Limits = DEFAULT_LIMITS) -> Sandbox:
    return await provider.start(SandboxSpec(limits=limits))


async def wait_for_exit_code(sandbox: Sandbox, command: str, exit_code: int = 0) -> None:
    """Repeat a command until it exits with `exit_code`; fail after a minute."""
    deadline = time.monotonic() + _WAIT_S
    while (result := await sandbox.exec(command)).exit_code != exit_code:
        assert time.monotonic() < deadline, f"{command!r} still gives {result}"


async def run_into_timeout(
    sandbox: Sandbox, command: str | list[str], ready: bytes = b"", *, stdin: bytes = b""
) -> ExecResult:
    """Return the result of a command that timed out after it had written `ready` to stdout.

    The command runs again with twice the timeout when it was not ready: a busy machine only takes longer.
    """
    timeout_s = 0.5
    for _ in range(8):
        result = await sandbox.exec(command, timeout_s=timeout_s, stdin=stdin)
        assert (result.timed_out, result.exit_code) == (True, -1), result
        assert result.seconds >= timeout_s
        if ready in result.stdout:
            return result
        timeout_s *= 2
    raise AssertionError(f"{command!r} never wrote {ready!r} before its timeout")


async def assert_usable(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo alive")).text == "alive\n"


class WithImage:
    """A provider that uses `image` wherever `host` is asked for; all else is as of `provider`."""

    def __init__(self, provider: Provider, image: str) -> None:
        self._provider = provider
        self._image = image

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start in the directory that the checks expect, whatever directory the image names."""
        if spec.image == "host":
            spec = replace(spec, image=self._image, workdir=spec.workdir or DEFAULT_WORKDIR)
        return await self._provider.start(spec)

    async def digest(self, image: str) -> str:
        return await self._provider.digest(self._image if image == "host" else image)


def find_provider(name: str, values: Mapping[str, str]) -> Provider:
    """Return the provider of this name, not yet open.

    Args:
        name: as in the setting `provider`, or MODULE:FUNCTION of a function that returns one.
        values: settings of the section [sandbox], unparsed; for Hone's own providers only.
    Raises:
        ValueError: no such provider, or a wrong setting. ImportError, AttributeError: no such function.
    """
    module, _, function = name.partition(":")
    if function:
        if values:
            raise ValueError(f"settings are for Hone's own providers, not for {name}: {dict(values)}")
        return getattr(importlib.import_module(module), function)()
    from hone.sandbox import make_provider
    from hone.sandbox.settings import SandboxSettings

    return make_provider(SandboxSettings.model_validate({"provider": name, **values}))


@contextlib.contextmanager
def open_provider(closed: Provider | WithImage) -> Iterator[Run]:
    """Open a provider; yield a function that runs one check with it, for at most five minutes."""
    provider = cast("Provider", closed)

    async def run(check: Check) -> None:
        async with asyncio.timeout(_CHECK_S):
            await check(provider)

    with asyncio.Runner() as runner:
        runner.run(provider.__aenter__())
        try:
            yield lambda check: runner.run(run(check))
        finally:
            runner.run(provider.__aexit__(None, None, None))
