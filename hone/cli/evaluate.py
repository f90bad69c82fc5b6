"""`hone eval`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED
from hone.cli.evaluate_engine import EngineKindOption, EngineOption, ModelOption
from hone.cli.evaluate_flags import (
    AgentOption,
    ConcurrencyOption,
    Flags,
    IdsOption,
    OutOption,
    ProviderOption,
    ResumeOption,
    SamplesOption,
    SliceOption,
    TasksOption,
    TemperatureOption,
    replaced_settings,
    to_sets,
)
from hone.cli.options import (
    AllowOverlapOption,
    DryRunOption,
    HelpConfigOption,
    JsonOption,
    RepoRootOption,
    SetOption,
    VenvOption,
    run_job,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter


def evaluate(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Recipe (TOML file); flags override it.")
    ] = None,
    agent: AgentOption = None,
    engine: EngineOption = None,
    engine_kind: EngineKindOption = None,
    model: ModelOption = None,
    tasks: TasksOption = None,
    ids: IdsOption = None,
    slice_: SliceOption = None,
    provider: ProviderOption = None,
    repo_root: RepoRootOption = None,
    venv: VenvOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    samples: SamplesOption = None,
    temperature: TemperatureOption = None,
    concurrency: ConcurrencyOption = None,
    sets: SetOption = None,
    allow_overlap: AllowOverlapOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    help_config: HelpConfigOption = False,
) -> int:
    """Evaluate a fixed policy, or a scripted agent, on held-out tasks.

    Prints the resolve rate with its 95 % interval and writes report.html beside the results. Exit code 1 if
    infrastructure faults lost samples; the same command with --resume retries those.

    [bold]Example[/bold]: hone eval recipes/quickstart.toml --model runs/quickstart/final --json

    [bold]Example[/bold]: hone eval --agent oracle --tasks tasks.jsonl -o results --slice 0:5

    [bold]Example[/bold]: hone eval --agent bash --engine http://localhost:8000 --tasks tasks.jsonl -o results
    """
    flags = Flags(
        recipe=recipe,
        agent=agent,
        engine=engine,
        engine_kind=engine_kind,
        model=model,
        tasks=tasks,
        ids=ids,
        slice=slice_,
        provider=provider,
        repo_root=repo_root,
        venv=venv,
        out=out,
        resume=resume,
        samples=samples,
        temperature=temperature,
        concurrency=concurrency,
        sets=tuple(sets or ()),
    )
    return _evaluate(flags, dry_run=dry_run, allow_overlap=allow_overlap, as_json=as_json)


def _evaluate(flags: Flags, *, dry_run: bool, allow_overlap: bool, as_json: bool) -> int:
    def job(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
        from hone.launch.evaluate import evaluate as run

        return run(settings, reporter, out=flags.out, resume=flags.resume or flags.out is None)

    sets, without = to_sets(flags), replaced_settings(flags)
    summary = run_job(
        "eval", flags.recipe, sets, job, dry_run=dry_run, allow_overlap=allow_overlap, without=without
    )
    if summary is None:
        return 0
    _print(summary, as_json=as_json)
    return FAILED if any(each["errors"] for each in summary.get("evaluations", [summary])) else 0


def _print(summary: dict[str, Any], *, as_json: bool) -> None:
    from hone.cli.output import print_json
    from hone.cli.summary import print_summary, print_sweep

    if as_json:
        print_json(summary)
    elif "evaluations" in summary:
        print_sweep(summary)
    else:
        print_summary(summary)
