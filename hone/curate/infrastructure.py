"""Tell a task that cannot be graded from sandboxes or a machine that are gone for every task."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from hone.grading.errors import GraderError
from hone.sandbox.contract import Provider, SandboxError, SandboxLost

_EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


async def raise_if_gone(error: Exception, provider: Provider) -> None:
    """Return when `error` is about one task only.

    Raises GraderError when the provider's own check fails, and when this machine is out of disk, memory or
    file descriptors.
    """
    for cause in _causes(error):
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _EXHAUSTED):
            raise GraderError(f"this machine cannot go on: {cause}") from error
        if isinstance(cause, SandboxError):
            health = await provider.health()
            failing = [check for check in health.checks if check.required and not check.ok]
            if failing:
                problems = "; ".join(f"{check.name}: {check.detail}" for check in failing)
                raise GraderError(f"no sandbox can be started ({problems}), after: {cause}") from error
            return


def is_transient(error: Exception) -> bool:
    """Return whether the same gradings may succeed in other sandboxes."""
    return any(
        isinstance(cause, SandboxLost) or (isinstance(cause, SandboxError) and cause.retryable)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
