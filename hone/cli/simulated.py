"""`hone plan RECIPE --simulate`"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.cli.errors import UsageError
from hone.cli.options import run_with_progress
from hone.cli.output import console, print_json, print_table
from hone.config.simulation import SimulatedPlan, advice, simulate_plan
from hone.simulate.measured import MeasuredWorkload, measure

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter
    from hone.utils.devices import Devices

WITH_A_RUN = {"steps", "replies", "death_every_s", "restart_s"}  # settings of simulations that a run leaves
HEADERS = (
    "staleness",
    "servers",
    "GPUs",
    "sandboxes",
    "per hour",
    "speed",
    "engine",
    "batch",
    "leased",
    "trainer",
    "limit",
)


def print_simulation(
    recipe: Path,
    settings: RunSettings,
    devices: Devices,
    from_run: Path | None,
    *,
    fill: bool,
    as_json: bool,
) -> int:
    """Print a row per simulated training, and what they say about the recipe."""
    if settings.rollout.park_after_s is not None:
        raise UsageError(
            "rollout.park_after_s is not simulated, as it depends on the processes in each sandbox: remove "
            "it from the recipe for the simulation"
        )
    given = sorted(settings.simulate.model_fields_set - WITH_A_RUN)
    if from_run is not None and given:
        raise UsageError(
            f"simulate.{given[0]} has no effect with --from-run, which measures it: remove one of them"
        )

    def job(reporter: Reporter) -> list[SimulatedPlan]:
        measured = None if from_run is None else _measure(from_run, reporter)
        with reporter.stage("simulating") as stage:
            return simulate_plan(
                settings,
                devices,
                measured=measured,
                fill=fill,
                on_row=stage.set_done,
            )

    rows = run_with_progress(job)
    if as_json:
        print_json(
            {
                "recipe": str(recipe),
                "machine": devices.describe(),
                "durations": "simulate" if from_run is None else str(from_run),
                "advice": advice(rows),
                "rows": [_record(row) for row in rows],
            }
        )
        return 0
    durations = "durations of [simulate]" if from_run is None else f"durations of {from_run}"
    console().print(f"Simulation of {recipe} on {devices.describe()}; {durations}.", markup=False)
    print_table(HEADERS, _cells(rows))
    merged = max(row.turns_merged for row in rows)
    if merged > 1:
        console().print(f"Up to {merged} turns in a row were simulated as one.", markup=False)
    console().print(advice(rows), markup=False)
    return 0


def _measure(run_dir: Path, reporter: Reporter) -> MeasuredWorkload:
    with reporter.stage("reading rollouts") as stage:
        return measure(run_dir, stage.set_done)


def _record(row: SimulatedPlan) -> dict[str, Any]:
    result = dataclasses.asdict(row.result)
    return {"gpus": row.gpus, "turns_merged": row.turns_merged, **result}


def _cells(rows: Sequence[SimulatedPlan]) -> Iterator[tuple[Any, ...]]:
    slowest = rows[0].result.rollouts_per_hour
    for row in rows:
        result = row.result
        yield (
            result.max_staleness,
            result.servers,
            row.gpus,
            result.sandboxes,
            f"{result.rollouts_per_hour:.0f}",
            f"{result.rollouts_per_hour / slowest:.2f}" if slowest else "-",
            f"{100 * result.busy['engine']:.0f} %",
            f"{100 * result.replies_share:.0f} %",
            f"{100 * result.leased_share:.0f} %",
            f"{100 * result.busy['trainer']:.0f} %",
            result.limit,
        )
