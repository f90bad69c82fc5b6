"""`hone tasks show | generate | import | export | validate | doctor | mine | mutate | split | rate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.doctor_tasks import doctor
from hone.cli.errors import UsageError
from hone.cli.import_tasks import FORMAT_HELP, RowFormat, import_tasks
from hone.cli.mine import mine
from hone.cli.mutate import mutate
from hone.cli.options import JsonOption, RecipeArgument, SetOption, Split
from hone.cli.rate import rate
from hone.cli.split import split
from hone.cli.validate import validate

if TYPE_CHECKING:
    from hone.tasks.splits import Splits
    from hone.types import Task

app = typer.Typer(help="Inspect, validate, generate and convert tasks.", no_args_is_help=True)


@app.command()
def show(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RECIPE|FILE] ID", help="A task's id, or its index in the set or in the file of tasks."
        ),
    ],
    split: Annotated[Split, typer.Option(help="Set of the task, of a recipe.")] = "train",
    checks: Annotated[bool, typer.Option("--checks", help="Also print hidden tests and gold patch.")] = False,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one task: the issue, the environment, the difficulty, the files and the history.

    Without a recipe or a file of tasks, the task comes from the built-in curriculum. --checks adds the hidden
    tests and the gold patch.

    [bold]Example[/bold]: hone tasks show tasks.jsonl 0

    [bold]Example[/bold]: hone tasks show quickstart 3 --split test --checks
    """
    from hone.cli.output import print_json
    from hone.cli.task import print_task

    *before, wanted = words
    if len(before) > 1:
        raise typer.BadParameter("pass at most one recipe or file, then the id or index of a task")
    task = _task(Path(before[0]) if before else None, wanted, split, sets or [])
    if as_json:
        from hone.tasks.formats import to_dict

        shown = to_dict(task)
        if not checks:
            del shown["checks"], shown["metadata"]
        print_json(shown)
    else:
        print_task(task, checks=checks)


@app.command()
def generate(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The JSONL file to write.")],
    sets: SetOption = None,
) -> None:
    """Write the tasks of a recipe to a JSONL file, for `tasks.source` of another recipe.

    [bold]Example[/bold]: hone tasks generate quickstart --out tasks.jsonl
    """
    from hone.tasks.formats import save

    splits = _splits(recipe, sets or [])
    save([task for _, tasks in splits.named() for task in tasks], out)
    sizes = ", ".join(f"{len(tasks)} {name}" for name, tasks in splits.named())
    typer.echo(f"{out}: {sizes}.")


FormatOption = Annotated[RowFormat, typer.Option(metavar="NAME", help=f"{FORMAT_HELP}.")]


@app.command()
def export(
    tasks_file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSONL file of tasks.")],
    format: FormatOption,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A .jsonl or .parquet file; a directory for the format harbor.",
        ),
    ],
    lists: Annotated[
        Path | None,
        typer.Option(
            "--lists", metavar="DIR", help="Also write instance_ids.txt and docker_images.txt there."
        ),
    ] = None,
) -> None:
    """Convert tasks into the rows of a data set; rows imported from that format keep their other columns.

    [bold]Example[/bold]: hone tasks export tasks.jsonl --format slime -o train.jsonl --lists lists
    """
    from hone.tasks.files import write_lists, write_rows
    from hone.tasks.formats import FORMATS
    from hone.tasks.formats.harbor import write_folders
    from hone.tasks.sources import load_all

    tasks = load_all(tasks_file)
    rows = [FORMATS[format].write(task) for task in tasks]
    if format == "harbor":
        write_folders(rows, out)
    else:
        write_rows(rows, out)
    if lists is not None:
        write_lists(tasks, lists)
    typer.echo(f"{out}: {len(tasks)} {'folders' if format == 'harbor' else 'rows'}.")


def _task(source: Path | None, wanted: str, split: Split, sets: list[str]) -> Task:
    """Return a task of a recipe, of a file of tasks, or of the built-in curriculum."""
    if source is None or source.suffix == ".toml":
        return _find(_splits(source, sets), wanted, split)
    from hone.tasks.sources import load_all
    from hone.tasks.splits import Splits

    if sets:
        raise UsageError(f"--set changes a recipe, and {source} is none: remove it")
    return _find(Splits(train=tuple(load_all(source))), wanted, "train")


def _splits(recipe: Path | None, sets: list[str]) -> Splits:
    from hone.config import resolve
    from hone.tasks.settings import TasksSettings
    from hone.tasks.sources import load_splits

    if recipe is not None:
        return load_splits(resolve(recipe, sets).tasks)
    if sets:
        raise UsageError("--set changes a recipe: pass one before the task's id")
    return load_splits(TasksSettings())


def _find(splits: Splits, wanted: str, split: Split) -> Task:
    """Return the task with this id in any set, or at this index of `split`."""
    from hone.config import nearest

    by_id = {task.id: task for _, tasks in splits.named() for task in tasks}
    if wanted in by_id:
        return by_id[wanted]
    if not wanted.isdigit():
        meant = nearest(wanted, by_id)
        raise UsageError(
            f"there is no task {wanted}: {f'did you mean {meant}?' if meant else 'pass an id or an index'}"
        )
    tasks: tuple[Task, ...] = getattr(splits, split)
    if int(wanted) >= len(tasks):
        raise UsageError(f"the set {split} has {len(tasks)} tasks: pass an index from 0 to {len(tasks) - 1}")
    return tasks[int(wanted)]


app.command("import")(import_tasks)
for command in (validate, doctor, mine, mutate, split, rate):
    app.command()(command)
