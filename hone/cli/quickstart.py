"""`hone quickstart`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.options import DryRunOption, HelpConfigOption, SetOption, run_job

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter


def quickstart(
    recipe: Annotated[Path, typer.Argument(metavar="[RECIPE]", help="A TOML file.")] = Path(
        "recipes/quickstart.toml"
    ),
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a small model to fix bugs in real sandboxes, on this machine, in minutes.

    Stages: record demonstrations, train a new model on them (SFT), evaluate, train by reinforcement (RL),
    evaluate again.

    [bold]Example[/bold]: hone quickstart recipes/quickstart.toml --dry-run
    """
    report = run_job("quickstart", recipe, sets, _quickstart, dry_run=dry_run)
    if report is not None:
        print_quickstart(*report)


def _quickstart(settings: RunSettings, reporter: Reporter) -> tuple[dict[str, Any], Path]:
    from hone.launch.quickstart import quickstart as run

    return run(settings, reporter), settings.run_dir


def print_quickstart(report: dict[str, Any], run_dir: Path) -> None:
    """Print the final table; `report` is the content of `report.json`."""
    from hone.cli.output import print_fields, print_table
    from hone.cli.summary import rate

    unseen, taught = report["unseen_families"], report["demonstrations"]
    right = "" if taught["right"] is None else f", of which {100 * taught['right']:.1f} % right"
    rows = [
        ("families seen in training", rate(report["before"]), rate(report["after"]), report["after"]["n"]),
        ("families never seen", rate(unseen["before"]), rate(unseen["after"]), unseen["after"]["n"]),
    ]
    print_table(["held-out tasks", "before RL", "after RL", "n"], rows, title="Resolve rate (95 % interval)")
    print_fields(
        {
            "demonstrations": str(taught["recorded"]) + right,
            "demonstrations graded": f"{rate(taught['graded'])} of {taught['graded']['n']}",
            "checkpoint": report["checkpoint"],
            "time": f"{report['seconds'] / 60:.1f} min",
            "peak memory": f"{report['peak_memory_gib']:.1f} GiB",
            "learning curve": f"hone show {run_dir}",
            "load with transformers": f"AutoModelForCausalLM.from_pretrained({report['checkpoint']!r})",
        }
    )
