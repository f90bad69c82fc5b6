"""`hone show`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.options import JsonOption

if TYPE_CHECKING:
    from hone.view.reader import RunReader
    from hone.view.records import RolloutRow

LISTED = 20  # rollouts, unless --limit says otherwise
_MARKER_FILES = (
    "ledger.sqlite",
    "summary.json",
    "results.jsonl",
    "sweep.json",
    "config.toml",
)  # files of a run or of an evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which rollouts of a run are listed, and how; with nothing set, the run itself is shown."""

    outcome: str | None
    step: int | None
    task: str | None
    sort: str | None
    limit: int | None

    @property
    def is_asked(self) -> bool:
        return any(v is not None for v in (self.outcome, self.step, self.task, self.sort, self.limit))


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN[/ROLLOUT]",
            help="A run, or one of its rollouts by the start of its name, a group or a task by its id; or an "
            "ATIF file.",
        ),
    ],
    outcome: Annotated[
        str | None, typer.Option(help="List the rollouts with this outcome, such as unresolved.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="List the rollouts that this step consumed.")] = None,
    task: Annotated[
        str | None, typer.Option(help="List the rollouts of the tasks whose id contains this.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help='List the rollouts by a field, such as reward; "-" before it: the largest first.'),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="List at most so many rollouts [default: 20].")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print each token of a rollout.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a run's counts and learning curve, its rollouts, or one rollout turn by turn with its verdict.

    RUN is a directory, or a name below runs/; the run may be in progress.

    [bold]Example[/bold]: hone show runs/quickstart

    [bold]Example[/bold]: hone show runs/quickstart --outcome unresolved --sort=-turns

    [bold]Example[/bold]: hone show runs/quickstart/train-0007
    """
    if Path(name).is_file():
        _show_file(Path(name), as_json)
        return
    listing = Listing(outcome=outcome, step=step, task=task, sort=sort, limit=limit)
    run = run_directory(name)
    if run is not None:
        if tokens:
            raise UsageError(f"{run} is a run: --tokens prints those of one rollout, {run}/ROLLOUT")
        if listing.is_asked:
            _list(run, listing, as_json)
        else:
            _show_run(run, as_json)
        return
    parent, _, part = name.rstrip("/").rpartition("/")
    run = run_directory(parent.removesuffix("/rollouts")) if parent else None
    if run is None:
        raise UsageError(
            f"there is no run {name}: pass the directory of a run or an evaluation{_runs_hint()}"
        )
    if listing.is_asked:
        raise UsageError(f"{name} is a part of a run: list the rollouts of the run itself, {run}")
    _show_part(run, part, tokens=tokens, as_json=as_json)


def _show_file(file: Path, as_json: bool) -> None:
    """Print a rollout of any framework, from an ATIF file."""
    from hone.cli.show_rollout import print_page
    from hone.launch.trajectories import read_atif
    from hone.view.rollout_page import page_of

    print_page(page_of(read_atif(file)), as_json=as_json)


def _show_part(run: Path, part: str, *, tokens: bool, as_json: bool) -> None:
    """Print a rollout, a group or a task of a run."""
    from hone.cli.show_rollout import print_group, print_rollout, print_task, print_tokens

    if not tokens:
        reader = _reader(run)
        rows = _rows(reader)
        if any(row.task_id == part for row in rows):
            print_task(reader, part, as_json=as_json)
            return
        if any(row.group_id == part for row in rows):
            print_group(reader, part, as_json=as_json)
            return
    rollout = find_rollout(run, part)
    if tokens:
        print_tokens(_reader(run), rollout.name, as_json=as_json)
    else:
        print_rollout(_reader(run), rollout.name, as_json=as_json)


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

        print_run(_reader(run), as_json=as_json)
        return
    if (run / "config.toml").is_file() and (run / "rollouts").is_dir():
        from hone.cli.show_run import print_stored

        print_stored(_reader(run), as_json=as_json)
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


def _list(run: Path, listing: Listing, as_json: bool) -> None:
    from hone.cli.show_run import print_rollouts
    from hone.view.records import Filter

    chosen = Filter(
        outcome=_outcome(listing.outcome),
        step=listing.step,
        task=listing.task or "",
        sort=listing.sort or Filter().sort,
    )
    try:
        print_rollouts(_reader(run), chosen, limit=listing.limit or LISTED, as_json=as_json)
    except ValueError as error:
        raise UsageError(f"--sort: {error}") from None


def _outcome(given: str | None) -> str:
    """Return a valid outcome, "" for none. Raises UsageError."""
    from hone.outcomes import Outcome

    if given is not None and given not in set(Outcome):
        raise UsageError(f"--outcome: there is no outcome {given!r}: choose one of {', '.join(Outcome)}")
    return given or ""


def _reader(run: Path) -> RunReader:
    from hone.view.reader import RunReader

    return RunReader(run.name, run)


def _rows(reader: RunReader) -> Sequence[RolloutRow]:
    from hone.view.rollouts import rollout_rows

    return rollout_rows(reader)
