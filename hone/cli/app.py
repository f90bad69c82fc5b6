"""The `hone` command line: its commands and the handling of their errors."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from types import TracebackType
from typing import Annotated

import typer

from hone import __version__
from hone.cli import agents, engine, images, recipes, servers, tasks, trajectory
from hone.cli.compare import compare
from hone.cli.doctor import doctor
from hone.cli.errors import FAILED, MISUSE, STOPPED, Interrupted, explain
from hone.cli.evaluate import evaluate
from hone.cli.export import export
from hone.cli.gateway import gateway
from hone.cli.grade import grade
from hone.cli.machine_plan import plan
from hone.cli.options import HelpConfigOption
from hone.cli.peers import slime, verl
from hone.cli.show import show
from hone.cli.start import start
from hone.cli.training import quickstart, replay, sft, train
from hone.cli.view import view
from hone.utils.text import visible

app = typer.Typer(
    name="hone",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
TRAIN, RUNS = "Train", "Evaluate, and look at runs"
TASKS, FLEET = "Tasks, grading and agents", "Machines and servers"
app.command("eval", rich_help_panel=RUNS)(evaluate)
for panel, commands in {
    TRAIN: (quickstart, start, sft, train, replay, verl, slime),
    RUNS: (view, show, compare, export),
    TASKS: (grade,),
    FLEET: (doctor, plan, servers.node, gateway),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(recipes.app, name="recipes", rich_help_panel=TRAIN)
app.add_typer(trajectory.app, name="trajectory", rich_help_panel=RUNS)
app.add_typer(tasks.app, name="tasks", rich_help_panel=TASKS)
app.add_typer(agents.app, name="agents", rich_help_panel=TASKS)
app.add_typer(images.app, name="images", rich_help_panel=FLEET)
app.add_typer(servers.app, name="pool", rich_help_panel=FLEET)
app.add_typer(engine.app, name="engine", rich_help_panel=FLEET)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hone {__version__}")
        raise typer.Exit


@app.callback()
def hone(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks (global option).")] = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train software-engineering agents by reinforcement learning.

    Start with [bold]hone doctor[/bold], then [bold]hone quickstart[/bold]; every command has --help.
    """


def main() -> int:
    """Run the command in `sys.argv` and return its exit code (see `hone.cli.errors`)."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    _make_logs_safe()
    try:
        code = app(args=arguments, prog_name="hone", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader of the pipe exited: `hone show RUN | head`
        return FAILED
    except Interrupted as stopped:
        print(visible(f"Stopped. {stopped}"), file=sys.stderr)
        return STOPPED
    except typer.Abort:
        return STOPPED
    except typer.TyperException as error:
        if message := error.format_message():  # empty when only the help was printed
            print(visible(f"hone: {message} (hone --help, hone COMMAND --help)"), file=sys.stderr)
        return MISUSE
    except Exception as error:
        failure = explain(error)
        if debug:
            sys.excepthook = _print_traceback
            raise
        print(visible(f"hone: {failure.sentence}"), file=sys.stderr)
        return failure.exit_code


def _print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    print(visible("".join(traceback.format_exception(kind, error, where))), file=sys.stderr, end="")


def _make_logs_safe() -> None:
    """Print hidden characters of log messages, which may quote a sandbox or a server, as escapes."""
    from hone.utils.terminal import SafeFormatter

    assert logging.lastResort is not None  # it prints the warnings of programs that set up no logging
    logging.lastResort.setFormatter(SafeFormatter())
