"""`hone pool` and `hone pool status`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.options import JsonOption
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

if TYPE_CHECKING:
    from hone.sandbox.remote.wire import StatusReply

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


@app.callback(invoke_without_command=True)
def pool(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = 18090,
    nodes: Annotated[
        str, typer.Option(metavar="URL,URL", help="Addresses of node servers; nodes can be added later.")
    ] = "",
    store: Annotated[
        Path, typer.Option(metavar="FILE", help="Database of leases and nodes; created if missing.")
    ] = Path("pool.sqlite"),
    token_file: TokenFileOption = None,
    node_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token of the nodes; default: --token-file."),
    ] = None,
    host: HostOption = "127.0.0.1",
    max_per_node: Annotated[
        int, typer.Option(min=0, help="Maximum sandboxes on each node of --nodes; 0: the node's own limit.")
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
    --token-file token --host 0.0.0.0
    """
    if context.invoked_subcommand is not None:
        return
    from hone.sandbox.pool.server import PoolOptions, run
    from hone.sandbox.remote.server import ClientTls, Listening

    token = read_token_file(token_file)
    options = PoolOptions(
        store=store,
        token=token,
        nodes=_addresses(nodes),
        node_token=read_token_file(node_token_file) or token,
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
