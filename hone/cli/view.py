"""`hone view`: runs and evaluations as web pages."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.servers import HostOption, TokenFileOption, read_token_file, run_server

if TYPE_CHECKING:
    from hone.view.library import Library

PORT = 8420
DEFAULT = Path("runs")


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN ...]",
            help="Run directories, evaluations or ATIF files; default: every run below runs/.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = PORT,
    host: HostOption = "127.0.0.1",
    token_file: TokenFileOption = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the pages as files into DIR, and exit.")
    ] = None,
) -> None:
    """Show runs in a browser, live and afterwards: curves, rollouts, verdicts, tokens. It changes nothing.

    The same records are JSON under /api. SIGTERM or Ctrl-C stops the server.

    [bold]Example[/bold]: hone view runs/quickstart

    [bold]Example[/bold]: hone view runs/quickstart --export report
    """
    from hone.view.library import Library

    with directories(runs or [DEFAULT]) as found:
        library = Library(found)
        if export is not None:
            _export(library, export)
            return
        from hone.view.web.server import serve

        token = read_token_file(token_file)
        run_server(serve(library, host=host, port=port, token=token, on_listening=_print_address))


@contextlib.contextmanager
def directories(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the directories to show; ATIF files become an evaluation in a temporary one.

    Raises UsageError for a path that does not exist.
    """
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {path}: name a run directory, or the directory that holds runs")
    files = [path for path in paths if path.is_file()]
    with contextlib.ExitStack() as stack:
        found = [path for path in paths if path.is_dir()]
        if files:
            from hone.launch.trajectories import import_rollouts

            imported = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "trajectories"
            import_rollouts(files, imported, lambda done, total: None)
            found.append(imported)
        yield found


def _export(library: Library, directory: Path) -> None:
    from hone.view.web.export import export

    written = export(library, directory)
    left_out = f"; {written.left_out} left out, whose files are missing" if written.left_out else ""
    print(f"{written.pages} pages{left_out}: open {written.first}")


def _print_address(url: str) -> None:
    print(f"open {url}  (Ctrl-C stops)", flush=True)
