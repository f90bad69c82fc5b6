"""The arguments that several commands share, and the one way in which they run a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from hone.config import Command, RunSettings
    from hone.launch.reporter import Reporter

Result = TypeVar("Result")


def _help_config(asked: bool) -> None:
    if asked:
        from hone.cli.help_config import print_settings

        print_settings()
        raise typer.Exit


RecipeArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE", help="A TOML file, such as recipes/quickstart.toml.", show_default=False
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Change one setting of the recipe; may be repeated."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what the run is going to need, and start nothing.")
]
AllowOverlapOption = Annotated[
    bool,
    typer.Option("--allow-overlap", help="Go on although a training task is also an evaluation task."),
]
HelpConfigOption = Annotated[
    bool,
    typer.Option(
        "--help-config",
        is_eager=True,
        callback=_help_config,
        help="List every setting of a recipe, and exit.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


PROVIDERS = ("namespaces", "docker", "pool")
ProviderOption = Annotated[
    str, typer.Option("--provider", metavar="NAME", help=f"What makes sandboxes: {', '.join(PROVIDERS)}.")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=VALUE", help="Change one setting, such as sandbox.memory_mib; may be repeated."
    ),
]
RepoRootOption = Annotated[
    Path | None,
    typer.Option(
        "--repo-root",
        metavar="DIR",
        help="Run on the repositories below DIR (git folders or bundles called owner__name), without images.",
        show_default=False,
    ),
]
VenvOption = Annotated[
    Path | None,
    typer.Option(
        "--venv",
        metavar="DIR",
        help="With --repo-root: a virtual environment with pytest and what the tests need; default: Hone "
        "installs what each repository requires, once, for its own interpreter.",
        show_default=False,
    ),
]
REPO_MEMORY_MIB = 2048  # of a sandbox in which whole repositories run
REPOSITORY_LIMITS = (f"sandbox.memory_mib={REPO_MEMORY_MIB}", "sandbox.pids=512", "sandbox.disk_mib=2048")


def require_choice(name: str, known: Sequence[str], what: str) -> str:
    """`name`, if it is known. Raises UsageError, naming the nearest."""
    from hone.cli.errors import UsageError
    from hone.config import nearest

    if name not in known:
        meant = nearest(name, known)
        raise UsageError(
            f"there is no {what} {name!r}: {f'did you mean {meant}?' if meant else ', '.join(known)}"
        )
    return name


def resolve_provider(provider: str, sets: list[str] | None) -> RunSettings:
    """The default settings with sandboxes of `provider`, roomy enough for whole repositories, and `sets`."""
    from hone.config import resolve

    require_choice(provider, PROVIDERS, "provider")
    return resolve(None, [f"sandbox.provider={provider}", *REPOSITORY_LIMITS, *(sets or [])])


def run_job(
    command: Command,
    recipe: Path | None,
    sets: list[str] | None,
    job: Callable[[RunSettings, Reporter], Result],
    *,
    dry_run: bool,
    allow_overlap: bool = False,
    without: Collection[str] = (),
) -> Result | None:
    """Resolve the recipe, or the defaults, and do the job on it; with `dry_run`, print the plan, return None.

    `without` are settings of the recipe that do not count.

    Raises Interrupted on Ctrl-C, and what the job raises.
    """
    from hone.config import ConfigError, make_plan, resolve

    every = [*(sets or ()), *(["tasks.allow_overlap=true"] if allow_overlap else [])]
    settings = resolve(recipe, every, without=without)
    plan = make_plan(settings, command)
    if dry_run:
        from hone.cli.plan import print_plan

        print_plan(plan)
        return None
    if plan.missing:
        raise ConfigError(f"this is not here yet: {'; '.join(plan.missing)}")
    return run_with_progress(lambda reporter: job(settings, reporter))


def run_with_progress(job: Callable[[Reporter], Result]) -> Result:
    """Do a job that may take long, with progress on the terminal and a clean stop on Ctrl-C."""
    from hone.cli.interrupts import stoppable
    from hone.cli.progress import make_reporter

    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of the libraries would tear up ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Threads of tensor operations that spin for long take the cores that sandboxes need; a few microseconds
    # are as quick on an idle machine and three times quicker on a busy one.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    hint = f"To go on, run the same command again: {shlex.join(['hone', *sys.argv[1:]])}"
    with stoppable(hint), make_reporter() as reporter:
        return job(reporter)
