"""Tokens and TLS files, and the refusal to serve other machines without a token."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import ProviderUnavailable
from hone.utils.http_server import is_loopback

_TOKEN_MAX = 4096  # bytes of a token file


def read_token(path: Path) -> str:
    """Return the token in a file, without surrounding white space.

    Raises ProviderUnavailable when the file is missing, empty, or may be read or written by others.
    """
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            data = file.read(_TOKEN_MAX + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077 or info.st_uid not in (0, os.geteuid()):
        raise _refusal(path, f"may be read or written by others; run: chmod 600 {path}")
    token = data.decode("ascii", "replace").strip()
    if not token or len(data) > _TOKEN_MAX or not token.isprintable() or not token.isascii() or " " in token:
        raise _refusal(path, "must hold one line of printable ASCII without spaces")
    return token


def _refusal(path: Path, why: str) -> ProviderUnavailable:
    return ProviderUnavailable(f"the token file {path} {why}", retryable=False)


def refuse_open_door(host: str, token: str) -> None:
    """Raise ProviderUnavailable for a server without a token that other machines could reach."""
    if not token and not is_loopback(host):
        raise ProviderUnavailable(
            f"without a token a server listens on loopback only, not on {host}: give --token-file",
            retryable=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """PEM files. By default the system's authorities are trusted and no client certificate is presented."""

    ca: Path | None = None  # that signed the servers' certificates
    certificate: Path | None = None  # this client's own (mutual TLS)
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return the SSL context. Raises ProviderUnavailable when a file is missing or invalid."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl.SSLError is one
            raise ProviderUnavailable(f"the TLS files cannot be used: {error}", retryable=False) from error
        return context
