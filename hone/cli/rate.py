"""`hone tasks rate`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli import evaluate
from hone.cli.errors import FAILED
from hone.cli.options import JsonOption, Provider, SetOption, parameters_of, run_job
from hone.launch.evaluate_engine import Kind

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter
    from hone.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The command line of `hone tasks rate`; None or False: not given."""

    tasks_file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of tasks.")]
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The JSONL file of rated tasks to write.")
    ]
    recipe: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="Recipe of the policy; flags override it.")
    ] = None
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Agent, as of `hone eval`; default: bash.")
    ] = None
    engine: Annotated[str | None, typer.Option(metavar="URL|local", help="Engine, as of `hone eval`.")] = None
    engine_kind: Annotated[Kind | None, typer.Option(help="Kind of the server; default: detected.")] = None
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|NAME", help="Model of the policy, as of `hone eval`.")
    ] = None
    provider: Annotated[Provider | None, typer.Option(help="Sandbox provider.")] = None
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Rollouts per task.")] = 4
    sets: SetOption = None
    as_json: JsonOption = False


@parameters_of(Flags)
def rate(flags: Flags) -> int:
    """Estimate how hard tasks are, by rollouts of a policy.

    Each task gets the policy's resolve rate with its 95 % interval in `metadata.rate`, which `hone tasks
    show` prints. The rollouts are an evaluation in the folder FILE.eval beside the file of -o; the same
    command continues a stopped one. Exit code 1 if infrastructure faults lost samples; the same command
    retries those.

    [bold]Example[/bold]: hone tasks rate tasks.jsonl --model runs/quickstart/final -o rated.jsonl --samples 8
    """
    from hone.tasks.bundles import with_bundles
    from hone.tasks.formats import save
    from hone.tasks.sources import load_all

    folder = flags.out.with_name(f"{flags.out.name}.eval")
    asked = evaluate.Flags(
        recipe=flags.recipe,
        agent=flags.agent or (None if flags.recipe else "bash"),
        engine=flags.engine,
        engine_kind=flags.engine_kind,
        model=flags.model,
        tasks=flags.tasks_file,
        out=folder,
        samples=flags.samples,
        provider=flags.provider,
        sets=[*(flags.sets or ()), "tasks.allow_overlap=true"],
    )

    def job(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
        from hone.launch.evaluate import evaluate as run

        return run(settings, reporter, out=folder, resume=True)

    summary = run_job(
        "eval",
        flags.recipe,
        evaluate.to_sets(asked),
        job,
        dry_run=False,
        without=evaluate.replaced_by(asked),
    )
    assert summary is not None, "only a dry run has no summary"
    from hone.evaluate.rates import rate_tasks

    rated = rate_tasks(load_all(flags.tasks_file), folder, summary["model"])
    save(with_bundles(rated, flags.out.parent), flags.out)
    _print(rated, flags, summary["errors"])
    return FAILED if summary["errors"] else 0


def _print(rated: list[Task], flags: Flags, faults: int) -> None:
    from hone.cli.output import print_json, print_table
    from hone.cli.summary import interval
    from hone.tasks.sources import RATE

    rates = {task.id: task.metadata[RATE] for task in rated if RATE in task.metadata}
    if flags.as_json:
        print_json({"file": str(flags.out), "faults": faults, "rates": rates})
        return
    rows = [
        (name, interval(each["rate"], each["low"], each["high"]), each["n"])
        for name, each in sorted(rates.items(), key=lambda item: (-item[1]["rate"], item[0]))
    ]
    print_table(("task", "resolve rate (95 % interval)", "rollouts"), rows)
    useful = sum(0 < each["rate"] < 1 for each in rates.values())
    typer.echo(
        f"{flags.out}: {len(rates)} of {len(rated)} tasks rated; {useful} resolved in some rollouts only."
    )
