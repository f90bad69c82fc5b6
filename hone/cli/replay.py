"""`hone replay`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.options import HelpConfigOption, SetOption, run_with_progress

if TYPE_CHECKING:
    from hone.launch.reporter import Reporter
    from hone.launch.train import TrainReport


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished training.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the new run.")],
    sets: SetOption = None,
    help_config: HelpConfigOption = False,
) -> None:
    """Train again on a run's stored rollouts with other settings, without sampling.

    [bold]Example[/bold]: hone replay runs/quickstart --out runs/no-clip --set train.loss.clip_high=0.28
    """
    from hone.cli.errors import UsageError
    from hone.cli.output import print_report
    from hone.config import resolve

    if not (run / "config.toml").is_file():
        raise UsageError(
            f"{run} holds no run (config.toml is missing): pass a directory written by `hone train`"
        )
    if out.resolve() == run.resolve():
        raise UsageError("--out is the run itself: choose another directory")
    settings = resolve(run / "config.toml", [*(sets or ()), f"run_dir={out}"])

    def job(reporter: Reporter) -> TrainReport:
        from hone.launch.replay import replay as start

        return start(run, settings, reporter)

    print_report(run_with_progress(job))
