"""`hone node`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.errors import UsageError

if TYPE_CHECKING:
    from hone.utils.http_server import Tls

ProviderOption = Annotated[
    Literal["namespaces", "docker"], typer.Option("--provider", help="What makes the sandboxes.")
]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token that clients must present."),
]
MaxSandboxesOption = Annotated[
    int, typer.Option("--max-sandboxes", min=1, help="Sandboxes at a time; more are told to come back.")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate (PEM); serves HTTPS.")
]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")]
ClientCaOption = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Only clients with a certificate of this CA."),
]


def node(
    port: PortOption,
    provider: ProviderOption = "namespaces",
    token_file: TokenFileOption = None,
    host: HostOption = "127.0.0.1",
    max_sandboxes: MaxSandboxesOption = 64,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    tls_client_ca: ClientCaOption = None,
) -> None:
    """Offer this machine's sandboxes over HTTP, to a pool or to clients.

    Ends on SIGTERM or Ctrl-C, once every sandbox that it started is gone.

    [bold]Example[/bold]: hone node --port 5000 --token-file /etc/hone/token --host 0.0.0.0
    """
    import asyncio
    import sys

    import uvloop

    from hone.sandbox import make_provider
    from hone.sandbox.node.node import NodeOptions
    from hone.sandbox.node.server import run
    from hone.sandbox.remote.auth import read_token
    from hone.sandbox.remote.process import Listening
    from hone.sandbox.settings import SandboxSettings
    from hone.utils.files import default_cache_dir

    token = read_token(token_file) if token_file else ""
    serving = run(
        make_provider(SandboxSettings(provider=provider)),
        NodeOptions(provider_name=provider, token=token, max_sandboxes=max_sandboxes),
        Listening(host=host, port=port, tls=_tls(tls_cert, tls_key, tls_client_ca)),
        directory=default_cache_dir() / "nodes",  # on a disk: what clients upload goes through it
        on_listening=lambda url: print(f"listening on {url}", file=sys.stderr, flush=True),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    from hone.utils.http_server import Tls

    if (certificate is None) != (key is None) or (client_ca and not certificate):
        raise UsageError("--tls-cert and --tls-key go together, and --tls-client-ca needs both")
    return Tls(certificate=certificate, key=key, client_ca=client_ca) if certificate and key else None
