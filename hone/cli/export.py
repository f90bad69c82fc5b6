"""`hone export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hone.cli.errors import UsageError


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Directory of a run or an evaluation, or a file of demonstrations."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The .parquet file to write.")],
) -> None:
    """Write conversations for supervised training with other programs, such as verl.

    Of a run, the resolved rollouts are exported. The columns are messages, tools and enable_thinking; hone
    sft reads the file, too (demonstrations.path).

    [bold]Example[/bold]: hone export runs/quickstart -o sft.parquet
    """
    if out.suffix != ".parquet":
        raise UsageError(f"--out {out} must end in .parquet")
    if not source.exists():
        raise UsageError(f"there is no run and no file {source}")
    from hone.launch.export import export as run

    typer.echo(f"{out}: {run(source, out)} conversations.")
