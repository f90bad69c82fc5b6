"""`hone recipes list | show`"""

from __future__ import annotations

from typing import Annotated

import typer

from hone.cli.options import JsonOption

app = typer.Typer(help="The recipes that come with Hone: list them, print one.", no_args_is_help=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the recipes that come with Hone, with the hardware that each is planned for.

    Every command takes these names, and so does `extends` in a recipe of yours.

    [bold]Example[/bold]: hone recipes list
    """
    from hone.cli.output import console, print_json, print_table
    from hone.config.bundled import FOLDER, bundled_recipes

    recipes = bundled_recipes()
    if as_json:
        print_json(recipes)
        return
    rows = [(recipe.name, recipe.hardware, recipe.description) for recipe in recipes]
    print_table(("recipe", "hardware", "what it trains"), rows)
    console().print(f"Their files: {FOLDER}", markup=False, soft_wrap=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `hone recipes list`.")],
) -> None:
    """Print a recipe as it is; redirect it to a file to begin one of your own.

    [bold]Example[/bold]: hone recipes show swe-8b > mine.toml
    """
    from hone.config import require_choice
    from hone.config.bundled import bundled_files

    files = bundled_files()
    typer.echo(files[require_choice(name, sorted(files), "recipe")].read_text(encoding="utf-8"), nl=False)
