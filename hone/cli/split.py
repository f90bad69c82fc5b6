"""`hone tasks split`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hone.cli.options import JsonOption


def split(
    tasks_file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of tasks.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of the sets; default: that of FILE."),
    ] = None,
    test: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the tasks for the test set.")
    ] = 0.2,
    validation: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Share for the validation set.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of the sets.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Divide tasks into train.jsonl, test.jsonl and, with --validation, validation.jsonl.

    Tasks of one family, or whose fixes change a common file, are in one set; in a project of few files, those
    whose fixes change a common function. So are tasks that the same tests decide, and tasks of one commit of
    a history. Bundles of their repositories are copied into DIR.

    [bold]Example[/bold]: hone tasks split tasks.jsonl --test 0.25 --seed 1
    """
    from hone.cli.errors import UsageError
    from hone.cli.output import print_json
    from hone.tasks.division import divide, write_sets
    from hone.tasks.sources import load_all

    if not 0 < test < 1 or test + validation >= 1:
        raise UsageError(
            f"--test {test:g} and --validation {validation:g} leave no tasks to train or to test on: pass "
            "shares above 0 whose sum is below 1"
        )
    division = divide(load_all(tasks_file), test=test, validation=validation, seed=seed)
    files = write_sets(division.splits, out or tasks_file.parent)
    sizes = {name: len(tasks) for name, tasks in division.splits.named() if tasks}
    if as_json:
        print_json(
            {
                "level": division.level,
                "groups": division.groups,
                "sets": sizes,
                "files": {name: str(path) for name, path in files.items()},
            }
        )
        return
    for name, path in files.items():
        typer.echo(f"{path}: {sizes[name]} tasks.")
    typer.echo(f"{division.groups} groups of tasks; each {division.level} is in one set.")
