"""`hone quickstart | sft | train | replay`"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import UsageError
from hone.cli.options import (
    AllowOverlapOption,
    DryRunOption,
    HelpConfigOption,
    RecipeArgument,
    SetOption,
    run_job,
    run_with_progress,
)

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter
    from hone.launch.sft import SftReport
    from hone.launch.train import TrainReport


# Settings, and groups of settings, that training again on stored rollouts uses ...
REPLAYED = (
    *("model.path", "model.revision", "model.dtype", "sampling.temperature", "train", "rollout.masked"),
    *("judge.enabled", "judge.coefficient", "progress.enabled", "progress.coefficient", "progress.gamma"),
    *("placement.trainer", "placement.nodes"),
)
# ... except these.
NOT_REPLAYED = ("train.validate", "train.restarts", "train.max_idle_steps")


def quickstart(
    recipe: Annotated[
        Path, typer.Argument(metavar="[RECIPE]", help="A name of `hone recipes list`, or a TOML file.")
    ] = Path("quickstart"),
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a small model to fix bugs in real sandboxes, on this machine, in minutes.

    Stages: record demonstrations, train a new model on them (SFT), evaluate, train by reinforcement (RL),
    evaluate again.

    [bold]Example[/bold]: hone quickstart --dry-run
    """

    def job(settings: RunSettings, reporter: Reporter) -> tuple[dict[str, Any], Path]:
        from hone.launch.quickstart import quickstart as run

        return run(settings, reporter), settings.run_dir

    report = run_job("quickstart", recipe, sets, job, dry_run=dry_run)
    if report is not None:
        print_quickstart(*report)


def sft(
    recipe: RecipeArgument,
    sets: SetOption = None,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a model on demonstrations (supervised fine-tuning).

    Demonstrations come from a file, from the stored rollouts of another run, or from a scripted agent that
    records them first. Run the same command again to continue.

    [bold]Example[/bold]: hone sft quickstart --set sft.epochs=2
    """

    def job(settings: RunSettings, reporter: Reporter) -> SftReport:
        from hone.launch.sft import sft as run

        return run(settings, reporter)

    _print_report(run_job("sft", recipe, sets, job, dry_run=dry_run))


def train(
    recipe: RecipeArgument,
    sets: SetOption = None,
    allow_overlap: AllowOverlapOption = False,
    dry_run: DryRunOption = False,
    help_config: HelpConfigOption = False,
) -> None:
    """Train a policy by reinforcement learning on its own rollouts.

    Run the same command again to continue after the last completed step; finished rollouts are reused. Exit
    code 1 if no step trained anything.

    [bold]Example[/bold]: hone train swe-8b-tiny --set train.steps=4
    """

    def job(settings: RunSettings, reporter: Reporter) -> TrainReport:
        from hone.launch.train import train as run

        return run(settings, reporter)

    _print_report(run_job("train", recipe, sets, job, dry_run=dry_run, allow_overlap=allow_overlap))


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished training.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the new run.")],
    sets: SetOption = None,
    help_config: HelpConfigOption = False,
) -> None:
    """Train again on a run's stored rollouts with other settings, without sampling.

    A --set that replay does not use, such as one of the engine, is refused.

    [bold]Example[/bold]: hone replay runs/quickstart --out runs/no-clip --set train.loss.clip_high=0.28
    """
    from hone.config import ConfigError, resolve
    from hone.config.fitting import refusal
    from hone.config.placement import devices_of_run
    from hone.launch.rundir import require_own
    from hone.utils.devices import find_devices

    _require_replayed(sets or ())
    if not (run / "config.toml").is_file():
        raise UsageError(
            f"{run} holds no run (config.toml is missing): pass a directory written by `hone train`"
        )
    if out.resolve() == run.resolve():
        raise UsageError("--out is the run itself: choose another directory")
    settings = resolve(run / "config.toml", [*(sets or ()), f"run_dir={out}"])
    require_own(settings)
    if refused := refusal(settings, "replay", devices_of_run(settings, find_devices())):
        raise ConfigError(refused)

    def job(reporter: Reporter) -> TrainReport:
        from hone.launch.train import replay as start

        return start(run, settings, reporter)

    _print_report(run_with_progress(job))


def _require_replayed(sets: Sequence[str]) -> None:
    """Raise UsageError for a --set without effect on `hone replay`; unknown names are found later."""
    from hone.config import RunSettings, walk

    known = {setting.path for setting in walk(RunSettings)}
    for text in sets:
        name = text.partition("=")[0].strip()
        used, unused = (
            any(f"{name}.".startswith(f"{each}.") for each in some) for some in (REPLAYED, NOT_REPLAYED)
        )
        if name in known and (unused or not used):
            raise UsageError(f"--set {name} has no effect on `hone replay`: remove it")


def _print_report(report: SftReport | TrainReport | None) -> None:
    """Print the fields of a report; None: the run was a dry run."""
    if report is not None:
        from hone.cli.output import print_fields

        print_fields(dataclasses.asdict(report))


def print_quickstart(report: dict[str, Any], run_dir: Path) -> None:
    """Print the final table; `report` is the content of `report.json`."""
    from hone.cli.output import print_fields, print_table
    from hone.cli.summary import rate

    unseen, taught = report["unseen_families"], report["demonstrations"]
    right = "" if taught["right"] is None else f", of which {100 * taught['right']:.1f} % right"
    rows = [
        ("families seen in training", rate(report["before"]), rate(report["after"]), report["after"]["n"]),
        ("families never seen", rate(unseen["before"]), rate(unseen["after"]), unseen["after"]["n"]),
    ]
    title = f"Resolve rate at temperature {report['temperature']:g} (95 % interval)"
    print_table(["held-out tasks", "before RL", "after RL", "n"], rows, title=title)
    print_fields(
        {
            "demonstrations": str(taught["recorded"]) + right,
            "demonstrations graded": f"{rate(taught['graded'])} of {taught['graded']['n']}",
            "steps without training": report["steps_without_training"],
            "tasks with equal rewards": report["tasks_with_equal_rewards"],
            "checkpoint": report["checkpoint"],
            "time": f"{report['seconds'] / 60:.1f} min",
            "peak memory": f"{report['peak_memory_gib']:.1f} GiB",
            "learning curve": f"hone show {run_dir}",
            "load with transformers": f"AutoModelForCausalLM.from_pretrained({report['checkpoint']!r})",
        }
    )
