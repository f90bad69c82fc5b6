"""Arguments that several commands share, and the functions that run a job."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from hone.launch.defaults import REPOSITORY_LIMITS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from hone.config import Command, Layer, RunSettings
    from hone.launch.reporter import Reporter

Result = TypeVar("Result")
Flags = TypeVar("Flags", bound="DataclassInstance")


def _help_config(asked: bool) -> None:
    if asked:
        from hone.cli.plan import print_settings

        print_settings()
        raise typer.Exit


RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A name of `hone recipes list`, or a TOML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=VALUE", help="Change one setting, such as sandbox.memory_mib; may be repeated."
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what the run needs, and exit.")]
AllowOverlapOption = Annotated[
    bool, typer.Option("--allow-overlap", help="Allow training tasks that are also evaluation tasks.")
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
RepositoryArgument = Annotated[
    Path, typer.Argument(metavar="REPO", help="A git repository: its folder, or a bundle.")
]
TasksOutOption = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="The JSONL file of tasks to write.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


Provider = Literal["namespaces", "docker", "pool"]
ProviderOption = Annotated[Provider, typer.Option(help="Sandbox provider.")]
Split = Literal["train", "validation", "test", "test_unseen"]
RepoRootOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Use the repositories below DIR (git folders or bundles named owner__name) instead of images.",
    ),
]
VenvOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With --repo-root: virtual environment with pytest and the tests' requirements; default: Hone "
        "installs the requirements of each repository once.",
    ),
]


def parameters_of(fields: type[Flags]) -> Callable[[Callable[[Flags], Result]], Callable[..., Result]]:
    """Return a decorator: the fields of a dataclass become the parameters of a command that takes it."""
    types = get_type_hints(fields, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=types[field.name],
        )
        for field in dataclasses.fields(fields)
    ]

    def decorate(command: Callable[[Flags], Result]) -> Callable[..., Result]:
        @functools.wraps(command)
        def run(**values: Any) -> Result:
            return command(fields(**values))

        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        return run

    return decorate


def resolve_provider(provider: Provider, sets: list[str] | None, venv: Path | None = None) -> RunSettings:
    """Return the default settings for repositories in sandboxes of `provider`, with `sets` on top."""
    from hone.config import assign, resolve

    venvs = [assign("--venv", "grading.venv", venv)] if venv is not None else []
    return resolve(None, [f"sandbox.provider={provider}", *REPOSITORY_LIMITS, *(sets or []), *venvs])


def run_job(
    command: Command,
    recipe: Path | None,
    sets: Sequence[str | Layer] | None,
    job: Callable[[RunSettings, Reporter], Result],
    *,
    dry_run: bool,
    allow_overlap: bool = False,
    without: Collection[str] = (),
) -> Result | None:
    """Run `job` on the settings of the recipe (None: the defaults), or print the plan and return None.

    Args:
        without: settings of the recipe to ignore.

    Raises Interrupted on Ctrl-C, ConfigError for missing prerequisites, and any exception of the job.
    """
    from hone.config import make_plan, resolve

    every = [*(sets or ()), *(["tasks.allow_overlap=true"] if allow_overlap else [])]
    settings = resolve(recipe, every, without=without, command=command)
    if command in ("sft", "train", "quickstart") and not dry_run:
        from hone.launch.rundir import claimed, require_own

        require_own(claimed(settings, command))  # before anything slow
    plan = make_plan(settings, command)
    if dry_run:
        from hone.cli.plan import print_plan

        print_plan(plan)
        return None
    plan.require_possible()

    def warned(reporter: Reporter) -> Result:
        for warning in plan.warnings:
            reporter.note(f"Warning: {warning}")
        return job(settings, reporter)

    return run_with_progress(warned)


def run_with_progress(job: Callable[[Reporter], Result]) -> Result:
    """Run a long job with progress on the terminal and a clean stop on Ctrl-C."""
    from hone.cli.interrupts import stoppable
    from hone.launch.reporter import make_reporter, set_library_variables

    set_library_variables()
    hint = f"To continue, run the same command again: {shlex.join(['hone', *sys.argv[1:]])}"
    with stoppable(hint), make_reporter() as reporter:
        return job(reporter)
