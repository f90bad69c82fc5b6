"""`hone show`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.options import JsonOption

_MARKER_FILES = (
    "ledger.sqlite",
    "summary.json",
    "results.jsonl",
    "sweep.json",
    "config.toml",
)  # files of a run or of an evaluation


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN[/ROLLOUT]", help="A run, or one of its rollouts by the start of its name."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print a run's counts and learning curve, or one rollout turn by turn with reward and verdict.

    RUN is a directory, or a name below runs/; the run may be in progress.

    [bold]Example[/bold]: hone show runs/quickstart

    [bold]Example[/bold]: hone show runs/quickstart/train-0007
    """
    run = run_directory(name)
    if run is not None:
        _show_run(run, as_json)
        return
    parent, _, rollout = name.rstrip("/").rpartition("/")
    run = run_directory(parent.removesuffix("/rollouts")) if parent else None
    if run is None:
        raise UsageError(
            f"there is no run {name}: pass the directory of a run or an evaluation{_runs_hint()}"
        )
    from hone.cli.show_run import print_rollout

    print_rollout(find_rollout(run, rollout), as_json=as_json)


def find_rollout(run: Path, name: str) -> Path:
    """Return the only rollout of a run whose name starts with `name`. Raises UsageError."""
    rollouts = run / "rollouts"
    names = sorted(path.name for path in rollouts.iterdir()) if rollouts.is_dir() else []
    found = [other for other in names if other.startswith(name) and not other.startswith(".")]
    if name in found:
        return rollouts / name
    if not found:
        example = f", such as {names[0]}" if names else ""
        raise UsageError(
            f"{run} has no rollout whose name starts with {name!r}: {len(names)} are stored{example}"
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} rollouts start with {name!r}: {', '.join(found[:3])} ...; pass a longer prefix"
        )
    return rollouts / found[0]


def run_directory(name: str) -> Path | None:
    """Return the directory of a run or an evaluation, given by its path or its name below runs/."""
    for path in (Path(name), Path("runs") / name):
        if any((path / file).is_file() for file in _MARKER_FILES):
            return path
    return None


def _show_run(run: Path, as_json: bool) -> None:
    if (run / "ledger.sqlite").is_file():
        from hone.cli.show_run import print_run

        print_run(run, as_json=as_json)
        return
    if (run / "config.toml").is_file() and (run / "rollouts").is_dir():
        from hone.cli.show_run import print_stored

        print_stored(run, as_json=as_json)
        return
    import json

    from hone.cli.summary import print_evaluation

    name = "sweep.json" if (run / "sweep.json").is_file() else "summary.json"
    if not (run / name).is_file():
        raise UsageError(f"the evaluation in {run} is not finished: run it again to continue")
    print_evaluation({**json.loads((run / name).read_text()), "out": str(run)}, as_json=as_json)


def _runs_hint() -> str:
    runs = (
        sorted(path.name for path in Path("runs").iterdir() if path.is_dir()) if Path("runs").is_dir() else []
    )
    return f"; runs/ contains {', '.join(runs[:8])}" if runs else ""
