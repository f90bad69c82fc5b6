"""`hone trajectory export | import`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.errors import UsageError
from hone.cli.options import JsonOption, run_with_progress

if TYPE_CHECKING:
    from hone.launch.reporter import Reporter
    from hone.launch.trajectories import Exported, Imported

app = typer.Typer(
    help="Exchange rollouts with other programs.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.command()
def export(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="Directory of a run or an evaluation, or a name below runs/.")
    ],
    kind: Annotated[
        Literal["atif", "hf", "otel"],
        typer.Option(
            "--format",
            help="atif: ATIF 1.8, as Harbor reads it; hf: agent traces, as the Hugging Face Hub shows them; "
            "otel: OpenTelemetry spans.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="New directory of the files; default: RUN/trajectories-FORMAT."
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Only rollouts of this task.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only rollouts that ended so, such as resolved.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Only rollouts that this training step consumed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the rollouts of a run as files of another program's format, one file each.

    Only atif holds everything, the tokens too: hone trajectory import reads such a file back bit for bit.

    [bold]Example[/bold]: hone trajectory export runs/quickstart --format atif --outcome resolved -o traces
    """
    from hone.cli.output import print_json
    from hone.cli.show import run_directory
    from hone.config import require_choice
    from hone.launch.trajectories import Choice, export_rollouts
    from hone.outcomes import Outcome

    run = run_directory(name)
    if run is None:
        raise UsageError(f"there is no run {name}: pass the directory of a run or an evaluation")
    ended = None if outcome is None else Outcome(require_choice(outcome, list(Outcome), "outcome"))
    choice = Choice(task=task, outcome=ended, step=step)
    target = out or run / f"trajectories-{kind}"

    def job(reporter: Reporter) -> Exported:
        with reporter.stage(f"exporting {run} as {kind}") as stage:
            return export_rollouts(run, target, kind, choice, stage.set_done)

    exported = run_with_progress(job)
    if as_json:
        print_json(exported)
        return
    left_out = f"; {exported.without_times} never began" if exported.without_times else ""
    typer.echo(f"{target}: {exported.written} rollouts{left_out}.")


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Trajectories in ATIF 1.0 to 1.8.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="New directory of the evaluation to write.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Store ATIF trajectories as an evaluation, which show, export and compare read.

    A file of hone trajectory export comes back as it was. One of another program has no grade, and tokens
    only if it holds their ids and log-probabilities.

    [bold]Example[/bold]: hone trajectory import traces/*.json -o runs/imported
    """
    from hone.cli.output import print_json
    from hone.launch.trajectories import import_rollouts

    def job(reporter: Reporter) -> Imported:
        with reporter.stage("importing", len(files)) as stage:
            return import_rollouts(files, out, stage.set_done)

    imported = run_with_progress(job)
    if as_json:
        print_json(imported)
        return
    typer.echo(f"{out}: {imported.rollouts} rollouts, {imported.trainable} with the tokens of their replies.")
