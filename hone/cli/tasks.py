"""`hone tasks show | generate | import | export | validate | doctor | mine | mutate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from hone.cli.doctor_tasks import doctor
from hone.cli.errors import FAILED, UsageError
from hone.cli.mine import mine
from hone.cli.mutate import mutate
from hone.cli.options import JsonOption, RecipeArgument, SetOption, Split
from hone.cli.validate import validate
from hone.tasks.gradeability import Gradeability

if TYPE_CHECKING:
    from hone.cli.import_report import RowReport
    from hone.tasks.splits import Splits
    from hone.types import Task

RowFormat = Literal[
    "hone",
    "swe-bench",
    "swe-gym",
    "swe-smith",
    "swe-rebench",
    "r2e-gym",
    "slime",
    "kodcode",
    "debugging",
]
_SHOWN = 20  # rejected rows printed

app = typer.Typer(help="Inspect, validate, generate and convert tasks.", no_args_is_help=True)


@app.command()
def show(
    words: Annotated[
        list[str], typer.Argument(metavar="[RECIPE] ID", help="A task's id, or its index in the set.")
    ],
    split: Annotated[Split, typer.Option(help="Set of the task.")] = "train",
    reveal: Annotated[bool, typer.Option("--reveal", help="Also print hidden tests and gold patch.")] = False,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print one task: the issue, the files and the history.

    Without a recipe, the task comes from the built-in curriculum. --reveal adds hidden tests and gold patch.

    [bold]Example[/bold]: hone tasks show recipes/quickstart.toml 3 --split test --reveal
    """
    from hone.cli.output import print_json
    from hone.cli.task import print_task

    *before, wanted = words
    if len(before) > 1:
        raise typer.BadParameter("pass at most one recipe, then the id or index of a task")
    task = _find(_splits(Path(before[0]) if before else None, sets or []), wanted, split)
    if as_json:
        from hone.tasks.formats import to_dict

        shown = to_dict(task)
        if not reveal:
            del shown["checks"], shown["metadata"]
        print_json(shown)
    else:
        print_task(task, reveal=reveal)


@app.command()
def generate(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The JSONL file to write.")],
    sets: SetOption = None,
) -> None:
    """Write the tasks of a recipe to a JSONL file, for `tasks.source` of another recipe.

    [bold]Example[/bold]: hone tasks generate recipes/quickstart.toml --out tasks.jsonl
    """
    from hone.tasks.formats import save

    splits = _splits(recipe, sets or [])
    save([task for _, tasks in splits.named() for task in tasks], out)
    sizes = ", ".join(f"{len(tasks)} {name}" for name, tasks in splits.named())
    typer.echo(f"{out}: {sizes}.")


_FORMATS = f"Format of the rows: {', '.join(get_args(RowFormat))}"
FormatOption = Annotated[RowFormat, typer.Option(metavar="NAME", help=f"{_FORMATS}.")]


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A .jsonl, .json or .parquet file, a folder of .parquet, or a data set of the hub.",
        ),
    ],
    format: Annotated[
        RowFormat | None,
        typer.Option(metavar="NAME", help=f"{_FORMATS}; default: by the columns of each row."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The JSONL file of tasks to write."),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Print which rows can be graded, why not, and statistics."),
    ] = False,
    split: Annotated[str | None, typer.Option(metavar="SET", help="Split of a folder or data set.")] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            "--instance-ids",
            "--ids",
            metavar="NAME|FILE",
            help="Only the tasks of a list: a file with one id per line, or django-train-201.",
        ),
    ] = None,
    repo: Annotated[
        list[str] | None,
        typer.Option(metavar="OWNER/NAME", help="Only tasks of this repository; may be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of tasks.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Shuffle the tasks with this seed.")] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Time limit of the tests; default: the data set's own."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Convert the rows of a data set into tasks, and refuse those that can never be graded.

    Prints the reason for each refused row. Exit code 1 if no row is usable.

    [bold]Example[/bold]: hone tasks import verified.parquet --format swe-bench -o tasks.jsonl

    [bold]Example[/bold]: hone tasks import verified.parquet --report
    """
    from hone.cli.import_report import assess_rows, print_report, report_json
    from hone.cli.output import print_json
    from hone.tasks.files import import_rows, read_source
    from hone.tasks.formats import FORMATS, save
    from hone.tasks.settings import SelectSettings
    from hone.tasks.sources import limit_time, select

    if out is None and not report:
        raise UsageError("-o is missing: pass the file of tasks to write, or --report")
    chosen = SelectSettings(repositories=tuple(repo or ()), ids_file=ids, limit=limit, seed=seed)
    imported = import_rows(read_source(source, split), FORMATS[format] if format else None)
    rows, usable = assess_rows(imported)
    refused = [each for each in rows if each.status is Gradeability.REFUSED]
    tasks = list(select(usable, chosen)) if usable else []
    if timeout_s is not None:
        tasks = list(limit_time(tasks, timeout_s))
    if tasks and out is not None:
        save(tasks, out)
    left_out = len(usable) - len(tasks)
    if as_json:
        counts = {"tasks": len(tasks), "repeated": imported.repeated, "left_out": left_out}
        named = [{"row": each.row, "id": each.id, "reason": each.reason} for each in refused]
        print_json({**counts, "refused": named, **(report_json(rows, tasks) if report else {})})
        return 0 if tasks else FAILED
    if report:
        print_report(rows, tasks)
    else:
        _print_refusals(source, refused)
    not_selected = f", {left_out} not selected" if chosen != SelectSettings() else ""
    typer.echo(
        f"{out if tasks and out else source}: {len(tasks)} tasks; {len(refused)} rows refused, "
        f"{imported.repeated} repeated{not_selected}."
    )
    return 0 if tasks else FAILED


@app.command()
def export(
    tasks_file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSONL file of tasks.")],
    format: FormatOption,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A .jsonl or .parquet file.")],
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
    from hone.tasks.sources import load_all

    tasks = load_all(tasks_file)
    write_rows([FORMATS[format].write(task) for task in tasks], out)
    if lists is not None:
        write_lists(tasks, lists)
    typer.echo(f"{out}: {len(tasks)} rows.")


def _print_refusals(source: str, refused: list[RowReport]) -> None:
    for each in refused[:_SHOWN]:
        name = f" ({each.id})" if each.id else ""
        typer.echo(f"{source}: row {each.row}{name}: {each.reason}", err=True)
    if len(refused) > _SHOWN:
        typer.echo(f"{source}: and {len(refused) - _SHOWN} more; all with --json", err=True)


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


for command in (validate, doctor, mine, mutate):
    app.command()(command)
