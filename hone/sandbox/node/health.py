"""Health of a provider, probed by starting a sandbox, running a command and closing it."""

from __future__ import annotations

import asyncio
import contextlib
import time

from hone.sandbox.contract import Provider, SandboxSpec

PROBE_S = 15.0  # between probes of a healthy provider
PROBE_MAX_S = 60.0  # time limit of a probe
_FAILING_S = 3.0  # between probes of a failing provider
_SETTLE_S = 1.0  # after a failed start, so that many failures cause one probe


class Probe:
    """Probes in the background and keeps the newest result."""

    def __init__(self, provider: Provider, start_failed: asyncio.Event) -> None:
        self.error = "not probed yet"  # of the newest probe; "" when it succeeded
        self.images: list[str] = []  # available without a pull, at the newest successful probe
        self._since = time.monotonic()  # monotonic time of the newest result
        self._provider, self._start_failed = provider, start_failed

    def failure(self) -> str:
        """Return why the provider does not work, or "". A result that is too old is a failure."""
        age = time.monotonic() - self._since
        if age > PROBE_S + PROBE_MAX_S:
            return f"the provider was last probed {age:.0f} s ago"
        return self.error

    async def watch(self) -> None:
        """Probe until cancelled; more often after failures."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAILING_S if self.error else PROBE_S):
                    await self._start_failed.wait()
                await asyncio.sleep(_SETTLE_S)
            self._start_failed.clear()
            await self.probe()

    async def probe(self) -> None:
        """Probe once and keep the result."""
        try:
            async with asyncio.timeout(PROBE_MAX_S):
                self.error = await self._try()
        except TimeoutError:
            self.error = f"a probe took over {PROBE_MAX_S:.0f} s"
        except Exception as error:  # any exception means that the provider does not work
            self.error = f"a probe failed: {error}"
        self._since = time.monotonic()

    async def _try(self) -> str:
        health = await self._provider.health()
        if not health.ok:
            return "; ".join(f"{c.name}: {c.detail}" for c in health.checks if c.required and not c.ok)
        async with await self._provider.start(SandboxSpec()) as sandbox:
            result = await sandbox.exec(["true"], timeout_s=PROBE_MAX_S)
        self.images = await self._provider.images()
        return "" if result.exit_code == 0 else f"a probe's command ended with {result.exit_code}"
