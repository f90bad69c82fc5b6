"""Flags and start-up that `hone node`, `hone pool` and `hone gateway` share."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import UsageError

if TYPE_CHECKING:
    from hone.utils.http_server import Tls

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token that clients must present."),
]
TlsCertOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate (PEM); serves HTTPS.")]
TlsKeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Private key (PEM) of --tls-cert.")]
ClientCaOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Accept only clients with a certificate of this CA."),
]


def make_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """Return the TLS settings of the flags; None for plain HTTP. Raises UsageError for an incomplete set."""
    from hone.utils.http_server import Tls

    if (certificate is None) != (key is None) or (client_ca and not certificate):
        raise UsageError("--tls-cert and --tls-key go together, and --tls-client-ca needs both")
    return Tls(certificate=certificate, key=key, client_ca=client_ca) if certificate and key else None


def read_token_file(path: Path | None) -> str:
    """Return the token in the file; "" without a file."""
    from hone.sandbox.remote.server import read_token

    return read_token(path) if path else ""


def run_server(server: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end on uvloop."""
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server)


def print_address(url: str) -> None:
    print(f"listening on {url}", file=sys.stderr, flush=True)
