"""Sandboxes: isolated, disposable places to run commands, and the providers that make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.sandbox.contract import (
    Check,
    ExecResult,
    Health,
    Limits,
    Mount,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
)

if TYPE_CHECKING:
    from hone.sandbox.settings import SandboxSettings

__all__ = [
    "Check",
    "ExecResult",
    "Health",
    "Limits",
    "Mount",
    "Provider",
    "ProviderUnavailable",
    "Sandbox",
    "SandboxError",
    "SandboxLost",
    "SandboxSpec",
    "make_provider",
]


def make_provider(settings: SandboxSettings) -> Provider:
    """The provider that the settings name. Imported on call, so that the spawn server stays small."""
    from hone.sandbox.namespaces.provider import NamespacesProvider

    return NamespacesProvider(settings)
