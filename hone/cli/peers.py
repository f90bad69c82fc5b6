"""`hone verl | slime`: train with another program, which gets its rollouts from Hone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hone.cli.options import HelpConfigOption, RecipeArgument, SetOption

OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OVERRIDE...]", help="Settings of the trainer itself, which win."),
]
PeerDryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the command line, and exit.")]


def verl(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    sets: SetOption = None,
    dry_run: PeerDryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train with verl on Hone's rollouts: verl owns the engine, the schedule and the weights.

    A setting of the recipe that verl cannot honour is refused. Run the same command again to continue from
    verl's last checkpoint.

    [bold]Example[/bold]: hone verl swe-8b-1node --dry-run
    """
    from hone.config import resolve
    from hone.integrations.verl.launch import plan_verl, run_verl

    settings = resolve(recipe, sets or ())
    if dry_run:
        _print_command(plan_verl(settings, overrides or ()).command)
        return
    run_verl(settings, overrides or ())


def slime(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    checkout: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The checkout of slime; default: the current directory."),
    ] = None,
    sets: SetOption = None,
    dry_run: PeerDryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train with slime on Hone's rollouts: slime owns the engine, the schedule and the weights.

    A setting of the recipe that slime cannot honour is refused. Megatron's arguments, such as the shape of
    the model, go behind the recipe.

    [bold]Example[/bold]: hone slime swe-8b-1node --checkout slime --dry-run -- --num-layers 36
    """
    from hone.config import resolve
    from hone.integrations.slime.launch import plan_slime, run_slime

    settings = resolve(recipe, sets or ())
    if dry_run:
        _print_command(plan_slime(settings, checkout, overrides or ()).command)
        return
    run_slime(settings, checkout, overrides or ())


def _print_command(command: list[str]) -> None:
    """Print a command, one argument a line, such that a shell takes it as it is."""
    import shlex

    from hone.cli.output import console

    first = next(
        (at for at, each in enumerate(command) if "=" in each or each.startswith("--")), len(command)
    )
    lines = [shlex.join(command[:first])]
    for each in command[first:]:
        joined = lines[-1].startswith("--") and " " not in lines[-1] and not each.startswith("--")
        lines[-1:] = [f"{lines[-1]} {shlex.quote(each)}"] if joined else [lines[-1], shlex.quote(each)]
    console().print(" \\\n    ".join(lines), markup=False, highlight=False, soft_wrap=True)
    console().print("Nothing was started. Run the same command without --dry-run to start.")
