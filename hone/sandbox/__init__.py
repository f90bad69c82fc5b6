"""Sandboxes, isolated and disposable environments for commands, and their providers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.sandbox.contract import (
    Check,
    Command,
    ExecResult,
    Health,
    ImageUnavailable,
    LeaseLost,
    Limits,
    Mount,
    OnOutput,
    Provider,
    ProviderUnavailable,
    QueueTimeout,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
    TooLarge,
    Unauthorized,
)

if TYPE_CHECKING:
    from hone.sandbox.settings import SandboxSettings

__all__ = [
    "Check",
    "Command",
    "ExecResult",
    "Health",
    "ImageUnavailable",
    "LeaseLost",
    "Limits",
    "Mount",
    "OnOutput",
    "Provider",
    "ProviderUnavailable",
    "QueueTimeout",
    "Sandbox",
    "SandboxError",
    "SandboxLost",
    "SandboxSpec",
    "TooLarge",
    "Unauthorized",
    "make_provider",
]


def make_provider(settings: SandboxSettings) -> Provider:
    """Return the provider of the settings. Imports it here to keep the spawn server small."""
    if settings.provider == "docker":
        from hone.sandbox.docker.provider import DockerProvider

        return DockerProvider(settings)
    if settings.provider == "pool":
        from hone.sandbox.client.provider import PoolProvider

        return PoolProvider(settings)
    from hone.sandbox.namespaces.provider import NamespacesProvider

    return NamespacesProvider(settings)
