"""`hone eval`: its flags are settings; a flag without effect is an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED, UsageError
from hone.cli.options import (
    AllowOverlapOption,
    DryRunOption,
    HelpConfigOption,
    JsonOption,
    Provider,
    RepoRootOption,
    SetOption,
    VenvOption,
    parameters_of,
    run_job,
)
from hone.launch.defaults import NO_RECIPE
from hone.launch.evaluate_engine import Given, Kind, engine_settings, replaced_settings
from hone.utils.text import visible

if TYPE_CHECKING:
    from hone.config import Layer, RunSettings
    from hone.launch.reporter import Reporter

AGENTS = ("bash", "debugger", "mini-swe-agent", "oracle", "noop", "demonstrator")
# presets of `hone.agents.blackbox`; other programs are paths to a TOML file
PROGRAMS = (
    "blackbox:qwen-code",
    "blackbox:qwen-code-acp",
    "blackbox:qwen-code-small",
    "blackbox:mini-swe-agent",
    "blackbox:opencode",
    "blackbox:codex",
    "blackbox:claude-code",
    "blackbox:gemini-cli",
    "blackbox:openhands",
    "blackbox:aider",
)
SCRIPTED = ("oracle", "noop", "demonstrator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The command line of `hone eval`; None or False: not given."""

    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE", help="A name of `hone recipes list`, or a TOML file; flags override it."
        ),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Agent: {', '.join((*AGENTS, *PROGRAMS))}, or blackbox:FILE.toml.",
        ),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL|local", help="Engine instead of the recipe's: the URL of a server, or `local`."
        ),
    ] = None
    engine_kind: Annotated[
        Kind | None,
        typer.Option(help="Kind of the server; default: detected. openai: text only, no token ids."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|NAME",
            help="Model of the policy: its folder, or its name on the server or on the hub.",
        ),
    ] = None
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tasks to evaluate on: a task file, rows of a known data set, or its name on the hub.",
        ),
    ] = None
    ids: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only the tasks listed in FILE, one id per line.")
    ] = None
    slice: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only this slice of the tasks, such as 0:5.")
    ] = None
    provider: Annotated[Provider | None, typer.Option(help="Sandbox provider.")] = None
    repo_root: RepoRootOption = None
    venv: VenvOption = None
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Directory of the results.")
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the stopped evaluation in the directory of -o.")
    ] = False
    samples: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rollouts per task, for pass@k.")
    ] = None
    temperature: Annotated[
        str | None,
        typer.Option(
            metavar="T[,T...]",
            help="Sampling temperature; several temperatures make one evaluation each.",
        ),
    ] = None
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum concurrent rollouts.")
    ] = None
    sets: SetOption = None
    allow_overlap: AllowOverlapOption = False
    dry_run: DryRunOption = False
    as_json: JsonOption = False
    help_config: HelpConfigOption = False


@parameters_of(Flags)
def evaluate(flags: Flags) -> int:
    """Evaluate a fixed policy, or a scripted agent, on held-out tasks.

    Prints the resolve rate with its 95 % interval and writes report.html beside the results. Exit code 1 if
    infrastructure faults lost samples, which the same command with --resume retries, or if no sample has a
    token of the policy.

    [bold]Example[/bold]: hone eval quickstart --model runs/quickstart/final --json

    [bold]Example[/bold]: hone eval --agent oracle --tasks tasks.jsonl -o results --slice 0:5

    [bold]Example[/bold]: hone eval --agent bash --engine http://localhost:8000 --tasks tasks.jsonl -o results
    """

    from hone.cli.summary import print_evaluation

    def job(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
        from hone.launch.evaluate import evaluate as run

        return run(settings, reporter, out=flags.out, resume=flags.resume or flags.out is None)

    summary = run_job(
        "eval",
        flags.recipe,
        to_sets(flags),
        job,
        dry_run=flags.dry_run,
        allow_overlap=flags.allow_overlap,
        without=replaced_by(flags),
    )
    if summary is None:
        return 0
    print_evaluation(summary, as_json=flags.as_json)
    evaluations = summary.get("evaluations", [summary])
    for problem in dict.fromkeys(each["problem"] for each in evaluations if each["problem"]):
        typer.echo(f"hone: {visible(problem)}", err=True)
    return FAILED if any(each["errors"] or each["problem"] for each in evaluations) else 0


def to_sets(flags: Flags) -> list[str | Layer]:
    """Return the settings of the flags, followed by the user's --set options.

    Raises UsageError when flags contradict each other, repeat a --set, or have no effect, and
    EngineError when the server of --engine does not answer.
    """
    from hone.config import assign

    _check(flags)
    no_recipe = flags.recipe is None
    engine, lengths = engine_settings(
        flags.engine, flags.engine_kind, flags.model, key_env=_key_env(flags), no_recipe=no_recipe
    )
    given = {**_settings(flags), **engine}
    for text in flags.sets or ():
        name = text.partition("=")[0].strip()
        if name in given:
            raise UsageError(f"{given[name][0]} and --set {name}=... both set {name}: remove one of them")
    base = [*NO_RECIPE, assign("-o", "run_dir", flags.out), *lengths] if no_recipe else []
    if flags.agent in SCRIPTED:
        base.append("tasks.allow_overlap=true")  # a scripted agent was not trained on any task
    return [*base, *(assign(flag, name, value) for name, (flag, value) in given.items()), *(flags.sets or ())]


def replaced_by(flags: Flags) -> list[str]:
    """Return the recipe's settings that flags replace."""
    kind = None if flags.agent is None else parse_agent(flags.agent)[0]
    return replaced_settings(kind, engine=flags.engine is not None)


def _check(flags: Flags) -> None:
    if flags.recipe is None:
        needed = {"--agent": flags.agent, "--tasks": flags.tasks, "-o": flags.out}
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise UsageError(
                f"pass a RECIPE, or all of --agent, --tasks and -o: missing {', '.join(missing)}"
            )
    if flags.resume and flags.out is None:
        raise UsageError(
            "--resume needs -o, the directory to continue in; without -o an evaluation always continues"
        )
    if flags.venv is not None and flags.repo_root is None:
        raise UsageError("--venv has no effect without --repo-root: pass both or neither")
    if flags.agent in SCRIPTED:
        asked = {
            "--engine": flags.engine,
            "--engine-kind": flags.engine_kind,
            "--model": flags.model,
            "--temperature": flags.temperature,
        }
        unused = [name for name, value in asked.items() if value is not None]
        if unused:
            raise UsageError(
                f"{unused[0]} has no effect: the agent {flags.agent} is scripted and uses no model"
            )


def _settings(flags: Flags) -> Given:
    """Return setting -> (flag, value)."""
    found: Given = {
        "sandbox.provider": ("--provider", flags.provider),
        "tasks.evaluation": ("--tasks", flags.tasks and str(flags.tasks)),
        "evaluate.split": ("--tasks", flags.tasks and "test"),
        "evaluate.slice": ("--slice", flags.slice),
        "evaluate.ids_file": ("--ids", flags.ids),
        "evaluate.repo_root": ("--repo-root", flags.repo_root),
        "grading.venv": ("--venv", flags.venv),
        "evaluate.samples": ("--samples", flags.samples),
        "rollout.concurrent_episodes": ("--concurrency", flags.concurrency),
    }
    if flags.agent is not None:
        kind, program = parse_agent(flags.agent)
        found |= {"agent.kind": ("--agent", kind), "agent.program": ("--agent", program or None)}
    if flags.temperature is not None and "," in flags.temperature:
        found["evaluate.temperatures"] = ("--temperature", flags.temperature.split(","))
    elif flags.temperature is not None:
        found["sampling.temperature"] = ("--temperature", flags.temperature)
        found["evaluate.temperatures"] = ("--temperature", [])  # instead of the recipe's
    return {name: (flag, value) for name, (flag, value) in found.items() if value is not None}


def _key_env(flags: Flags) -> str | None:
    """Return NAME of --set engine.api_key_env=NAME, needed before the settings are resolved."""
    named = [text.partition("=") for text in flags.sets or ()]
    found = [value.strip() for name, _, value in named if name.strip() == "engine.api_key_env"]
    return found[-1].strip("\"'") if found else None


def parse_agent(name: str) -> tuple[str, str]:
    """Return (kind, program), such as ("blackbox", "qwen-code"). Raises UsageError with the nearest name."""
    from hone.config import require_choice

    kind, _, program = name.partition(":")
    if kind != "blackbox" or not ("/" in program or program.endswith(".toml")):
        require_choice(name, (*AGENTS, *PROGRAMS), "agent")
    return kind, program
