"""`hone sft`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.cli.options import DryRunOption, HelpConfigOption, RecipeArgument, SetOption, run_job

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter
    from hone.launch.sft import SftReport


def sft(
    recipe: RecipeArgument,
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a model on demonstrations (supervised fine-tuning).

    Demonstrations come from a file, from the stored rollouts of another run, or from a scripted agent that
    records them first. Run the same command again to continue.

    [bold]Example[/bold]: hone sft recipes/quickstart.toml --set sft.epochs=2
    """
    report = run_job("sft", recipe, sets, _sft, dry_run=dry_run)
    if report is not None:
        from hone.cli.output import print_report

        print_report(report)


def _sft(settings: RunSettings, reporter: Reporter) -> SftReport:
    from hone.launch.sft import sft as run

    return run(settings, reporter)
