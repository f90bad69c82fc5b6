"""`hone train`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.cli.options import (
    AllowOverlapOption,
    DryRunOption,
    HelpConfigOption,
    RecipeArgument,
    SetOption,
    run_job,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter
    from hone.launch.train import TrainReport


def train(
    recipe: RecipeArgument,
    sets: SetOption = None,
    allow_overlap: AllowOverlapOption = False,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a policy by reinforcement learning on its own rollouts.

    Run the same command again to continue after the last completed step; finished rollouts are reused.

    [bold]Example[/bold]: hone train recipes/quickstart.toml --set train.steps=20
    """
    report = run_job("train", recipe, sets, _train, dry_run=dry_run, allow_overlap=allow_overlap)
    if report is not None:
        from hone.cli.output import print_report

        print_report(report)


def _train(settings: RunSettings, reporter: Reporter) -> TrainReport:
    from hone.launch.train import train as run

    return run(settings, reporter)
