"""`hone start`"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED
from hone.cli.options import (
    JsonOption,
    ProviderOption,
    SetOption,
    resolve_provider,
    run_with_progress,
)

if TYPE_CHECKING:
    from hone.launch.start import Started

_ADDRESSES = ("://", "git@")


ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|NAME",
        help="Model to train: its folder, or its name on the hub; default: a tiny one of the run.",
    ),
]
TestsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB", help="Folders or files of tests, besides those that Hone finds; may be repeated."
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder of all files; default: runs/NAME.")
]
LimitOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Tasks to mine, and bugs to seed, at most.")
]
RepeatOption = Annotated[int, typer.Option(min=1, metavar="N", help="Gradings of each patch for its proof.")]


def start(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of a git repository in Python.")],
    out: OutOption = None,
    model: ModelOption = None,
    tests: TestsOption = None,
    limit: LimitOption = 50,
    repeat: RepeatOption = 3,
    provider: ProviderOption = "namespaces",
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make tasks from your repository, evaluate a model on them, and train it.

    Finds the tests, mines bug fixes from the history, seeds bugs that the tests detect, proves every task,
    divides them into a training and a test set, writes a recipe with everything resolved, and says what
    hardware it takes. Where this machine suffices, evaluates the model and trains it.

    Every stage leaves a file in DIR that the single commands read (tasks.jsonl, train.jsonl, test.jsonl,
    recipe.toml, baseline/, run/). Run the same command again to continue a stopped run.

    [bold]Example[/bold]: hone start ../my-project -o runs/my-project

    [bold]Example[/bold]: hone start ../my-project -o runs/my-project-8b --model Qwen/Qwen3-8B
    """
    from hone.cli.errors import UsageError
    from hone.launch.start import StartJob
    from hone.launch.start import start as run

    if any(mark in path for mark in _ADDRESSES):
        raise UsageError(f"{path} is an address: run `git clone {path}` and pass the folder that it makes")
    repository = Path(path)
    chosen = [f"sandbox.provider={provider}", *(sets or ())]
    settings = resolve_provider(
        provider,
        [
            f"grading.concurrency={os.cpu_count() or 1}",
            *(each for each in sets or () if each.startswith(("sandbox.", "grading."))),
        ],
    )
    job = StartJob(
        repository=repository,
        out=out or Path("runs") / repository.resolve().name,
        model=model,
        tests=tuple(tests or ()),
        limit=limit,
        repeats=repeat,
        sets=tuple(chosen),
    )
    started = run_with_progress(lambda reporter: run(settings, job, reporter))
    _print(started, job.out, path, model, as_json=as_json)
    return FAILED if started.nothing_learnt and model is not None else 0


def _print(started: Started, out: Path, path: str, model: str | None, *, as_json: bool) -> None:
    from hone.cli.output import print_fields, print_json
    from hone.cli.summary import rate

    following = next_command(started, out, path, model)
    if as_json:
        print_json(_as_json(started, out, following))
        return
    sizes = ", ".join(f"{size} {name}" for name, size in started.sets.items())
    print_fields(
        {
            "tests": f"{started.tests} files",
            "tasks": f"{started.mined} mined and {started.seeded} seeded, all proven: {out / 'tasks.jsonl'}",
            "sets": f"{sizes}; each {started.level} is in one set",
            "recipe": str(out / "recipe.toml"),
            "hardware": started.hardware.machine or "no machine of up to 8 GPUs of 80 GiB",
            "baseline": f"{rate(started.baseline)} resolved: {out / 'baseline' / 'report.html'}"
            if started.baseline
            else None,
            "trained": _trained(started),
            "not trained": started.why_not or started.nothing_learnt or None,
            "time": f"{started.minutes:.1f} min",
        }
    )
    if model is None:
        typer.echo(
            "The tiny model shows that everything works on your repository. It is too small to learn to fix "
            "real code: its rewards stay equal, and RL changes nothing."
        )
    typer.echo(f"Next: {following}")


def next_command(started: Started, out: Path, path: str, model: str | None) -> str:
    """Return the command that is worth running after `hone start`."""
    if started.trained is not None and model is not None:
        words = ["hone", "eval", str(out / "recipe.toml"), "--model", str(started.trained.checkpoint)]
    elif model is not None:
        words = ["hone", "train", str(out / "recipe.toml")]
    else:
        words = ["hone", "start", path, "-o", f"{out}-8b", "--model", "Qwen/Qwen3-8B"]
    return shlex.join(words)


def _trained(started: Started) -> str | None:
    if started.trained is None:
        return None
    reward = started.trained.reward
    mean = "" if reward is None else f", mean reward {reward:.2f} in the last one"
    return f"{started.trained.steps} steps{mean}: {started.trained.checkpoint}"


def _as_json(started: Started, out: Path, following: str) -> dict[str, Any]:
    baseline = started.baseline
    return {
        "folder": str(out),
        "test_files": started.tests,
        "tasks": {"mined": started.mined, "seeded": started.seeded},
        "refused": started.refused,
        "sets": started.sets,
        "level": started.level,
        "hardware": started.hardware.machine,
        "baseline": baseline and {name: baseline[name] for name in ("resolve_rate", "low", "high", "n")},
        "checkpoint": started.trained and str(started.trained.checkpoint),
        "steps": started.trained and started.trained.steps,
        "not_trained": started.why_not or started.nothing_learnt,
        "minutes": round(started.minutes, 1),
        "next": following,
    }
