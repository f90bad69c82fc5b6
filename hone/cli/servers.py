"""`hone node`, `hone pool` and `hone pool status`, and the flags of servers."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hone.cli.errors import UsageError
from hone.cli.options import JsonOption

if TYPE_CHECKING:
    from hone.sandbox.remote.wire import StatusReply
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


LISTED = 50  # leases in the table
NODE_COLUMNS = {
    "node": "url",
    "state": "state",
    "active": "active",
    "starting": "starting",
    "capacity": "capacity",
    "free MiB": "free_memory_mib",
    "images": "images",
    "start ms": "start_ms_p50",
    "failed": "failures",
    "why": "why",
}
"""Column of the table -> field of the node's status."""

app = typer.Typer()
CaOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate authority (PEM) of the servers; default: the system's."),
]
CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Client certificate (PEM) for mutual TLS.")
]
KeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private key (PEM) of the client certificate.")
]
NodesOption = Annotated[
    str,
    typer.Option(
        metavar="URL,URL",
        envvar="SWE_EXEC_SERVER_URLS",
        help="Addresses of node servers; nodes can be added later.",
    ),
]


@app.callback(invoke_without_command=True)
def pool(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="SWE_ENV_SERVER_PORT", help="Port to listen on; 0 picks a free port."
        ),
    ] = 18090,
    nodes: NodesOption = "",
    store: Annotated[
        Path, typer.Option(metavar="FILE", help="Database of leases and nodes; created if missing.")
    ] = Path("pool.sqlite"),
    token_file: TokenFileOption = None,
    node_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token of the nodes; adding nodes needs it."),
    ] = None,
    host: Annotated[
        str, typer.Option(envvar="SWE_ENV_SERVER_BIND_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    max_per_node: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="SWE_MAX_CONTAINERS_PER_NODE",
            help="Maximum sandboxes on each node of --nodes; 0: the node's own limit.",
        ),
    ] = 0,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: ClientCaOption = None,
    node_ca: CaOption = None,
    node_cert: CertificateOption = None,
    node_key: KeyOption = None,
) -> None:
    """Lease the sandboxes of many nodes, until SIGTERM or Ctrl-C; leases survive a restart.

    [bold]Example[/bold]: hone pool --nodes http://node-1:5000,http://node-2:5000 --store pool.sqlite
    --token-file token --node-token-file node-token --host 0.0.0.0
    """
    if context.invoked_subcommand is not None:
        return
    from hone.sandbox.pool.server import PoolOptions, run
    from hone.sandbox.remote.server import ClientTls, Listening

    options = PoolOptions(
        store=store,
        token=read_token_file(token_file),
        nodes=_addresses(nodes),
        node_token=read_token_file(node_token_file),
        node_tls=ClientTls(ca=node_ca, certificate=node_cert, key=node_key),
        max_per_node=max_per_node,
    )
    tls = make_tls(tls_cert, tls_key, tls_client_ca)
    run_server(run(options, Listening(host=host, port=port, tls=tls), on_listening=print_address))


def _addresses(nodes: str) -> tuple[str, ...]:
    from hone.sandbox.pool.core import clean_url

    try:
        return tuple(clean_url(url) for url in nodes.split(",") if url.strip())
    except ValueError as error:
        raise UsageError(f"--nodes: {error}") from None


@app.command()
def status(
    url: Annotated[str, typer.Option(help="Address of the pool server.")] = "http://127.0.0.1:18090",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertificateOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the nodes of a running pool, its leases and its queue.

    [bold]Example[/bold]: hone pool status --url http://head-node:18090 --token-file token
    """
    import asyncio

    from hone.cli.output import print_json
    from hone.sandbox.client.api import ask_status
    from hone.sandbox.remote.server import ClientTls

    tls = ClientTls(ca=ca, certificate=cert, key=key)
    found = asyncio.run(ask_status(url, read_token_file(token_file), tls))
    if as_json:
        print_json(found.model_dump(exclude={"ok"}))
    else:
        _print_status(found)


def _print_status(found: StatusReply) -> None:
    from hone.cli.output import print_fields, print_table

    nodes = [[getattr(node, name) for name in NODE_COLUMNS.values()] for node in found.nodes]
    print_table(list(NODE_COLUMNS), nodes, title="Nodes")
    oldest = sorted(found.leases, key=lambda lease: -lease.age_s)[:LISTED]
    leases = [
        (
            each.lease_id,
            each.state,
            each.run,
            each.image,
            each.node_url,
            f"{each.age_s:.0f}",
            f"{each.expires_in_s:.0f}",
        )
        for each in oldest
    ]
    more = f", the oldest {LISTED}" if len(found.leases) > LISTED else ""
    headers = ("lease", "state", "run", "image", "node", "age s", "ends in s")
    print_table(headers, leases, title=f"{len(found.leases)} leases{more}")
    print_fields({"queued": {run or "(no run)": n for run, n in found.queued.items()}, **found.totals})
