"""`hone agents list | prepare`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.options import JsonOption, run_with_progress

if TYPE_CHECKING:
    from pathlib import Path

    from hone.launch.reporter import Reporter

app = typer.Typer(help="Install the command-line agents that run inside sandboxes.", no_args_is_help=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the agents that come with Hone and whether their tools are installed.

    [bold]Example[/bold]: hone agents list
    """
    from hone.agents.blackbox import is_prepared, load_program, presets
    from hone.agents.blackbox.layer import default_layers
    from hone.agents.scaffold import ScaffoldError
    from hone.cli.output import print_json, print_table

    rows: list[dict[str, str]] = []
    for program in map(load_program, presets()):
        try:
            state = "prepared" if is_prepared(program, default_layers()) else "not prepared"
        except ScaffoldError as error:  # the machine lacks a prerequisite, such as node
            state = str(error)
        rows.append({"agent": program.name, "wire": program.wire, "tools": state})
    if as_json:
        print_json(rows)
        return
    print_table(("agent", "wire", "tools"), [tuple(row.values()) for row in rows])


@app.command()
def prepare(
    name: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A name of `hone agents list`, or a path to a TOML file.")
    ],
) -> None:
    """Install the tools of an agent, so that its runs need no network.

    The tools are installed once into Hone's cache; sandboxes mount them read-only.

    [bold]Example[/bold]: hone agents prepare qwen-code
    """
    from hone.agents.blackbox import load_program, prepare
    from hone.agents.blackbox.layer import default_layers

    program = load_program(name)

    def job(reporter: Reporter) -> Path:
        with reporter.stage(f"installing {program.name}"):
            return prepare(program, default_layers())

    typer.echo(f"{program.name}: {run_with_progress(job)}")
