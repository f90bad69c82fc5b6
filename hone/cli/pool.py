"""`hone pool` and `hone pool status`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.options import JsonOption

if TYPE_CHECKING:
    from hone.sandbox.pool.server import PoolOptions
    from hone.sandbox.remote.process import Listening
    from hone.sandbox.remote.wire import StatusReply

LISTED = 50  # leases in the table

app = typer.Typer()
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token that clients present."),
]
CaOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Authority (PEM) whose certificates servers present.")
]
CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate (PEM) to present (mutual TLS).")
]
KeyOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private key (PEM) of that certificate.")
]


@app.callback(invoke_without_command=True)
def pool(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 18090,
    nodes: Annotated[
        str, typer.Option(metavar="URL,URL", help="Addresses of node servers; others can be added later.")
    ] = "",
    store: Annotated[
        Path, typer.Option(metavar="FILE", help="Leases and nodes; made where it is missing.")
    ] = Path("pool.sqlite"),
    token_file: TokenFileOption = None,
    node_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the nodes' token; default: the same.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    max_per_node: Annotated[
        int, typer.Option(min=0, help="Most sandboxes on a node of --nodes; 0: what it says itself.")
    ] = 0,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate (PEM); serves HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only clients with a certificate of this CA.")
    ] = None,
    node_ca: CaOption = None,
    node_cert: CertificateOption = None,
    node_key: KeyOption = None,
) -> None:
    """Lease out the sandboxes of many nodes, until SIGTERM or Ctrl-C; leases outlive a restart.

    [bold]Example[/bold]: hone pool --nodes http://node-1:5000,http://node-2:5000 --store pool.sqlite
    --token-file token --host 0.0.0.0
    """
    if context.invoked_subcommand is not None:
        return
    from hone.cli.errors import UsageError
    from hone.sandbox.client.tls import ClientTls
    from hone.sandbox.pool.server import PoolOptions
    from hone.sandbox.remote.auth import read_token
    from hone.sandbox.remote.process import Listening
    from hone.utils.http_server import Tls

    if (tls_cert is None) != (tls_key is None) or (tls_client_ca and not tls_cert):
        raise UsageError("--tls-cert and --tls-key go together, and --tls-client-ca needs both")
    tls = Tls(certificate=tls_cert, key=tls_key, client_ca=tls_client_ca) if tls_cert and tls_key else None
    token = read_token(token_file) if token_file else ""
    options = PoolOptions(
        store=store,
        token=token,
        nodes=_addresses(nodes),
        node_token=read_token(node_token_file) if node_token_file else token,
        node_tls=ClientTls(ca=node_ca, certificate=node_cert, key=node_key),
        max_per_node=max_per_node,
    )
    _serve(options, Listening(host=host, port=port, tls=tls))


def _serve(options: PoolOptions, listening: Listening) -> None:
    import asyncio
    import sys

    import uvloop

    from hone.sandbox.pool.server import run

    def tell(url: str) -> None:
        print(f"listening on {url}", file=sys.stderr, flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options, listening, on_listening=tell))


def _addresses(nodes: str) -> tuple[str, ...]:
    from hone.cli.errors import UsageError
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
    from hone.sandbox.client.pool import ask_status
    from hone.sandbox.client.tls import ClientTls
    from hone.sandbox.remote.auth import read_token

    token = read_token(token_file) if token_file else ""
    tls = ClientTls(ca=ca, certificate=cert, key=key)
    found = asyncio.run(ask_status(url, token, tls))
    if as_json:
        print_json(found.model_dump(exclude={"ok"}))
    else:
        _print_status(found)


def _print_status(found: StatusReply) -> None:
    from hone.cli.output import print_fields, print_table

    print_table(
        (
            "node",
            "state",
            "active",
            "starting",
            "room for",
            "free MiB",
            "images",
            "start ms",
            "failed",
            "why",
        ),
        [
            (
                node.url,
                node.state,
                node.active,
                node.starting,
                node.capacity,
                node.free_memory_mib,
                node.images,
                node.start_ms_p50,
                node.failures,
                node.why,
            )
            for node in found.nodes
        ],
        title="Nodes",
    )
    oldest = sorted(found.leases, key=lambda lease: -lease.age_s)
    more = f", the oldest {LISTED}" if len(oldest) > LISTED else ""
    print_table(
        ("lease", "state", "run", "image", "node", "age s", "ends in s"),
        [
            (
                lease.lease_id,
                lease.state,
                lease.run,
                lease.image,
                lease.node_url,
                round(lease.age_s),
                round(lease.expires_in_s),
            )
            for lease in oldest[:LISTED]
        ],
        title=f"{len(found.leases)} leases{more}",
    )
    print_fields({"queued": {run or "(no run)": n for run, n in found.queued.items()}, **found.totals})
