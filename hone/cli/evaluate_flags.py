"""The flags of `hone eval` and their settings; a flag without effect is an error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.evaluate_engine import KINDS, engine_settings
from hone.cli.options import (
    PROVIDERS,
    REPOSITORY_LIMITS,
    AllowOverlapOption,
    DryRunOption,
    HelpConfigOption,
    JsonOption,
    RepoRootOption,
    SetOption,
    VenvOption,
    require_choice,
)

AGENTS = ("bash", "debugger", "mini-swe-agent", "oracle", "noop", "demonstrator")
BLACKBOX = "blackbox:"
PROGRAMS = ("qwen-code", "mini-swe-agent")  # presets of `blackbox`; any other is a path to a TOML file
SCRIPTED = ("oracle", "noop", "demonstrator")
# Without a recipe: only the tasks of --tasks, in sandboxes large enough for whole repositories.
NO_RECIPE = (
    *REPOSITORY_LIMITS,
    *(f"tasks.{name}=0" for name in ("train", "test", "unseen")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The command line of `hone eval`; None or False: not given."""

    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Recipe (TOML file); flags override it.")
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Agent: {', '.join(AGENTS)}, or {BLACKBOX}PROGRAM ({', '.join(PROGRAMS)}).",
        ),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL|local", help="Engine instead of the recipe's: the URL of a server, or `local`."
        ),
    ] = None
    engine_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"Kind of the server ({', '.join(KINDS)}); default: detected. openai: text only, no token "
            "ids.",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|NAME", help="Model of the policy: its folder, or its name on the server."
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
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Sandbox provider: {', '.join(PROVIDERS)}.")
    ] = None
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


def to_sets(flags: Flags) -> list[str]:
    """Return the settings of the flags in the form of `--set`, followed by the user's --set options.

    Raises UsageError when flags contradict each other, repeat a --set, or have no effect, and
    EngineError when the server of --engine does not answer.
    """
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
    base = [*NO_RECIPE, f"run_dir={_plain(flags.out)}", *lengths] if no_recipe else []
    if flags.agent in SCRIPTED:
        base.append("tasks.allow_overlap=true")  # a scripted agent was not trained on any task
    return [*base, *(f"{name}={value}" for name, (_, value) in given.items()), *(flags.sets or ())]


def replaced_settings(flags: Flags) -> list[str]:
    """Return the recipe's settings that flags replace.

    --agent replaces settings of other agents; --engine replaces all engine settings except the context.
    """
    from hone.config import RunSettings, walk

    kind = None if flags.agent is None else parse_agent(flags.agent)[0]
    names: list[str] = []
    for setting in walk(RunSettings):
        group, _, name = setting.path.partition(".")
        of_agent = kind is not None and group == "agent" and setting.kinds and kind not in setting.kinds
        of_engine = flags.engine is not None and group == "engine" and name not in ("", "context_tokens")
        if of_agent or of_engine:
            names.append(setting.path)
    return names


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


def _settings(flags: Flags) -> dict[str, tuple[str, str]]:
    """Return setting -> (flag, value in TOML)."""
    found: dict[str, tuple[str, str]] = {}
    if flags.agent is not None:
        kind, program = parse_agent(flags.agent)
        found["agent.kind"] = ("--agent", _plain(kind))
        if program:
            found["agent.program"] = ("--agent", _plain(program))
    if flags.provider is not None:
        found["sandbox.provider"] = (
            "--provider",
            _plain(require_choice(flags.provider, PROVIDERS, "provider")),
        )
    if flags.tasks is not None:
        found["tasks.evaluation"] = ("--tasks", _plain(flags.tasks))
        found["evaluate.split"] = ("--tasks", _plain("test"))
    if flags.slice is not None:
        found["evaluate.slice"] = ("--slice", _plain(_slice(flags.slice)))
    if flags.temperature is not None:
        found.update(_temperature(flags.temperature))
    simple = {
        "evaluate.ids_file": ("--ids", flags.ids),
        "evaluate.repo_root": ("--repo-root", flags.repo_root),
        "grading.venv": ("--venv", flags.venv),
        "evaluate.samples": ("--samples", flags.samples),
        "rollout.concurrent_episodes": ("--concurrency", flags.concurrency),
    }
    found.update({name: (flag, _plain(v)) for name, (flag, v) in simple.items() if v is not None})
    return found


def _key_env(flags: Flags) -> str | None:
    """Return NAME of --set engine.api_key_env=NAME, needed before the settings are resolved."""
    named = [text.partition("=") for text in flags.sets or ()]
    found = [value.strip() for name, _, value in named if name.strip() == "engine.api_key_env"]
    return found[-1].strip("\"'") if found else None


def parse_agent(name: str) -> tuple[str, str]:
    """Return (kind, program), such as ("blackbox", "qwen-code"). Raises UsageError with the nearest name."""
    if name == BLACKBOX.rstrip(":") or name == BLACKBOX:
        raise UsageError(f"--agent {name} needs a program: {BLACKBOX}{PROGRAMS[0]}, or {BLACKBOX}FILE.toml")
    if name.startswith(BLACKBOX):
        program = name.removeprefix(BLACKBOX)
        if "/" not in program and not program.endswith(".toml"):
            require_choice(program, PROGRAMS, "program for blackbox")
        return "blackbox", program
    require_choice(name, (*AGENTS, *(BLACKBOX + program for program in PROGRAMS)), "agent")
    return name, ""


def _slice(text: str) -> str:
    from hone.evaluate.settings import parse_slice

    try:
        parse_slice(text)
    except ValueError as error:
        raise UsageError(f"--slice {error}") from None
    return text


def _temperature(text: str) -> dict[str, tuple[str, str]]:
    try:
        temperatures = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--temperature {text!r} is not a number or a comma-separated list of numbers"
        ) from None
    if len(temperatures) == 1:
        return {"sampling.temperature": ("--temperature", repr(temperatures[0]))}
    return {"evaluate.temperatures": ("--temperature", repr(temperatures))}


def _plain(value: object) -> str:
    """Return the value in TOML syntax."""
    return str(value) if isinstance(value, int) else json.dumps(str(value))
