"""`hone view`: runs and evaluations as web pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.servers import HostOption, TokenFileOption, read_token_file, run_server

if TYPE_CHECKING:
    from hone.view.web.pages import Library

PORT = 8420


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN ...]", help="Run directories or evaluations; default: all below runs/."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = PORT,
    host: HostOption = "127.0.0.1",
    token_file: TokenFileOption = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the pages as files into DIR, and exit."),
    ] = None,
) -> None:
    """Show runs in a browser, live and afterwards: curves, rollouts, verdicts, tokens. It changes nothing.

    The same records are JSON under /api. SIGTERM or Ctrl-C stops the server.

    [bold]Example[/bold]: hone view runs/quickstart

    [bold]Example[/bold]: hone view runs/quickstart --export report
    """
    from hone.view.library import Library
    from hone.view.web.server import serve

    library = Library(runs or [Path("runs")])
    if export is not None:
        _export(library, export)
        return
    token = read_token_file(token_file)
    run_server(serve(library, host=host, port=port, token=token, on_listening=_print_address))


def _export(library: Library, directory: Path) -> None:
    from hone.view.web.export import export

    written = export(library, directory)
    left_out = f"; {written.left_out} left out, whose files are missing" if written.left_out else ""
    print(f"{written.pages} pages{left_out}: open {written.first}")


def _print_address(url: str) -> None:
    print(f"open {url}  (Ctrl-C stops)", flush=True)
