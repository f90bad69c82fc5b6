"""TLS settings of clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import ProviderUnavailable


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
