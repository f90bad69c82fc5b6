"""Sandboxes, isolated and disposable environments for commands, and their providers.

`hone.sandbox(...)` opens one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.sandbox.contract import Check as Check
from hone.sandbox.contract import Command as Command
from hone.sandbox.contract import ExecResult as ExecResult
from hone.sandbox.contract import Health as Health
from hone.sandbox.contract import ImageUnavailable as ImageUnavailable
from hone.sandbox.contract import IncompleteSnapshot as IncompleteSnapshot
from hone.sandbox.contract import LeaseLost as LeaseLost
from hone.sandbox.contract import Limits as Limits
from hone.sandbox.contract import Mount as Mount
from hone.sandbox.contract import OnOutput as OnOutput
from hone.sandbox.contract import Provider as Provider
from hone.sandbox.contract import ProviderUnavailable as ProviderUnavailable
from hone.sandbox.contract import QueueTimeout as QueueTimeout
from hone.sandbox.contract import Sandbox as Sandbox
from hone.sandbox.contract import SandboxError as SandboxError
from hone.sandbox.contract import SandboxLost as SandboxLost
from hone.sandbox.contract import SandboxSpec as SandboxSpec
from hone.sandbox.contract import TooLarge as TooLarge
from hone.sandbox.contract import Unauthorized as Unauthorized
from hone.utils.callable_package import make_callable

if TYPE_CHECKING:
    from hone.sandbox.settings import SandboxSettings

make_callable(__name__, "hone.front_door.sandboxes:sandbox")


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
