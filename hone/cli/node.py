"""`hone node`"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from hone.cli.serving import (
    ClientCaOption,
    HostOption,
    TlsCertOption,
    TlsKeyOption,
    TokenFileOption,
    make_tls,
    print_address,
    read_token_file,
    run_server,
)

ProviderOption = Annotated[
    Literal["namespaces", "docker"], typer.Option("--provider", help="Sandbox provider.")
]


def node(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")],
    provider: ProviderOption = "namespaces",
    token_file: TokenFileOption = None,
    host: HostOption = "127.0.0.1",
    max_sandboxes: Annotated[
        int,
        typer.Option(min=1, help="Maximum concurrent sandboxes; excess requests get HTTP 503."),
    ] = 64,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: ClientCaOption = None,
) -> None:
    """Serve this machine's sandboxes over HTTP, to a pool or to clients.

    SIGTERM or Ctrl-C stops the server after all its sandboxes are removed.

    [bold]Example[/bold]: hone node --port 5000 --token-file /etc/hone/token --host 0.0.0.0
    """
    from hone.sandbox import make_provider
    from hone.sandbox.node.node import NodeOptions
    from hone.sandbox.node.server import run
    from hone.sandbox.remote.server import Listening
    from hone.sandbox.settings import SandboxSettings
    from hone.utils.files import default_cache_dir

    server = run(
        make_provider(SandboxSettings(provider=provider)),
        NodeOptions(provider_name=provider, token=read_token_file(token_file), max_sandboxes=max_sandboxes),
        Listening(host=host, port=port, tls=make_tls(tls_cert, tls_key, tls_client_ca)),
        directory=default_cache_dir() / "nodes",  # on a disk: uploads pass through it
        on_listening=print_address,
    )
    run_server(server)
