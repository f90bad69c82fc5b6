"""The node and pool servers as processes: where they listen, and how many files they may open."""

from __future__ import annotations

import resource
import socket
from dataclasses import dataclass

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.remote.auth import refuse_open_door
from hone.utils.http_server import Tls, address, listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens."""

    host: str
    port: int  # 0: a free one
    tls: Tls | None = None

    def open(self, token: str) -> socket.socket:
        """Return a listening socket for a server that `token` protects.

        Raises ProviderUnavailable when it cannot listen, or when anyone could use the server without a token.
        """
        refuse_open_door(self.host, token)
        raise_open_files()
        try:
            return listen(self.host, self.port)
        except OSError as error:
            raise ProviderUnavailable(
                f"cannot listen on {self.host}, port {self.port}: {error.strerror}", retryable=False
            ) from error

    def url(self, listener: socket.socket) -> str:
        return address(listener, tls=self.tls is not None)


def raise_open_files() -> None:
    """Raise this process's limit on open files to the highest that it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
