"""`hone.evaluate`, `hone.train` and `hone.sft`"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config import Layer, RunSettings, assign
from hone.front_door.arguments import Overrides, Recipe, require_fits, require_possible, resolved
from hone.front_door.blocking import block_on
from hone.front_door.rollouts import agent_layers, policy_layers, replaced
from hone.launch.reporter import Reporter, make_reporter, set_library_variables
from hone.types import Task
from hone.utils.errors import UsageError
from hone.utils.extras import extras_of

if TYPE_CHECKING:
    from hone.launch.sft import SftReport
    from hone.launch.train import TrainReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of `hone.evaluate`."""

    resolve_rate: float  # over the `n` samples without infrastructure faults
    low: float  # of its 95 % interval
    high: float
    n: int
    errors: int  # samples lost to infrastructure faults; the same call tries them again
    out: Path  # directory of results.jsonl, report.html and the rollouts, which `hone.read_run` reads
    summary: dict[str, Any]  # every figure of summary.json


def evaluate(
    tasks: str | Path | Sequence[Task] | None = None,
    agent: str | None = None,
    *,
    model: str | Path | None = None,
    engine: str | None = None,
    recipe: Recipe | None = None,
    out: str | Path | None = None,
    samples: int | None = None,
    settings: Overrides | None = None,
    progress: bool = True,
) -> Evaluation:
    """Evaluate a fixed policy, or a scripted agent, as `hone eval` does; the same call continues it.

    Args:
        tasks: file or name of a data set, or tasks of `hone.load_tasks`. Default: the recipe's.
        agent, model, engine, settings: as in `hone.open_rollouts`; an agent is named.
        recipe: file or name of a recipe. Without one, `tasks` and `out` are needed.
        out: directory of the results. Default: one below `run_dir/eval` for these weights, tasks and
            settings.
        samples: rollouts of each task, for pass@k; default: the recipe's, else 1.
        progress: whether progress is printed to stderr.

    Raises:
        UsageError, ConfigError: an argument cannot be used.
        EvaluateError: `out` holds another evaluation, or no task is left.
        EngineError, PolicyError, ProviderUnavailable, TaskError: engine, model, sandboxes or tasks are
            unusable.
        MissingExtra: the extra that the engine needs is not installed.

    Example:
        result = hone.evaluate("tasks.jsonl", "oracle", out="results")
        print(f"{result.resolve_rate:.0%} of {result.n}, {result.low:.0%} to {result.high:.0%}")
    """
    if recipe is None and (tasks is None or out is None):
        raise UsageError("without a recipe, an evaluation needs tasks and out: pass both, or recipe=")

    given = None if tasks is None or isinstance(tasks, (str, Path)) else list(tasks)

    def prepare() -> RunSettings:
        base = policy_layers(engine, model, settings, no_recipe=recipe is None)
        base += agent_layers(agent) + _evaluate_layers(tasks, out if recipe is None else None, samples)
        ready = resolved(recipe, settings, "eval", base, replaced(agent, engine))
        _require_one_temperature(ready)
        if given is None:
            require_possible(ready, "eval")
        else:
            require_fits(ready, "eval")
        return ready

    async def work(reporter: Reporter) -> dict[str, Any]:
        from hone.launch.evaluate import open_and_evaluate

        ready = await asyncio.to_thread(prepare)
        return await open_and_evaluate(ready, reporter, tasks=given, out=Path(out) if out else None)

    with _job("hone.evaluate", progress=progress) as reporter:
        summary = block_on(work(reporter))
    figures = {name: summary[name] for name in ("resolve_rate", "low", "high", "n", "errors")}
    return Evaluation(**figures, out=Path(summary["out"]), summary=summary)


def train(
    recipe: Recipe | None,
    settings: Overrides | None = None,
    *,
    progress: bool = True,
) -> TrainReport:
    """Train a policy by reinforcement learning, as `hone train` does; the same call continues the run.

    Args:
        recipe: file or name of a recipe, or settings from `hone.config.resolve`; None: `settings` alone.
        settings: setting -> value on top of the recipe, such as {"train.steps": 20, "run_dir": "runs/mine"}.
        progress: whether progress is printed to stderr.

    Returns:
        The run directory, the completed steps, the last checkpoint and the mean reward of the last step.

    Raises:
        ConfigError: the recipe cannot be used, the run does not fit this machine, or `run_dir` belongs to
            another recipe.
        EngineError, PolicyError, ProviderUnavailable, TaskError, RolloutError, TrainError, LedgerError: the
            run stopped; the same call resumes it.
        MissingExtra: the extra `train` is not installed.

    Example:
        report = hone.train("quickstart", {"train.steps": 20})
        print(report.steps, report.reward, report.checkpoint)
    """

    async def work(reporter: Reporter) -> TrainReport:
        from hone.launch.train import open_and_train

        return await open_and_train(await asyncio.to_thread(_possible, recipe, settings, "train"), reporter)

    with _job("hone.train", progress=progress) as reporter:
        return block_on(work(reporter))


def sft(
    recipe: Recipe | None,
    settings: Overrides | None = None,
    *,
    progress: bool = True,
) -> SftReport:
    """Train a model on demonstrations, as `hone sft` does; the same call continues the run.

    Args: as `train`; `demonstrations.path` names files of conversations, and directories of runs whose
        resolved rollouts are used.

    Returns:
        The run directory, the number of demonstrations, the checkpoint and the loss of the last step.

    Raises: as `train`.

    Example:
        hone.sft("my.toml", {"demonstrations.path": "results", "model.path": "models/small"})
    """
    with _job("hone.sft", progress=progress) as reporter:
        from hone.launch.sft import sft as run

        return run(_possible(recipe, settings, "sft"), reporter, run=block_on)


def _possible(recipe: Recipe | None, settings: Overrides | None, command: Any) -> RunSettings:
    """Return the settings of a run that this machine can do; blocks. Raises ConfigError."""
    ready = resolved(recipe, settings, command)
    require_possible(ready, command)
    return ready


def _require_one_temperature(settings: RunSettings) -> None:
    several = settings.evaluate.temperatures
    if len(several) > 1:
        raise UsageError(
            f"evaluate.temperatures lists {len(several)}: evaluate one at a time, with "
            'settings={"evaluate.temperatures": [0.5]}'
        )


def _evaluate_layers(
    tasks: str | Path | Sequence[Task] | None, run_dir: str | Path | None, samples: int | None
) -> list[str | Layer]:
    """Return the settings of an evaluation's own arguments."""
    given: dict[str, tuple[str, Any]] = {}
    if isinstance(tasks, (str, Path)):
        given["tasks.evaluation"] = ("tasks", str(tasks))
    if tasks is not None:
        given["evaluate.split"] = ("tasks", "test")
    if run_dir is not None:
        given["run_dir"] = ("out", str(run_dir))
    if samples is not None:
        given["evaluate.samples"] = ("samples", samples)
    return [assign(name, path, value) for path, (name, value) in given.items()]


@contextmanager
def _job(caller: str, *, progress: bool) -> Generator[Reporter]:
    """Yield the reporter of a long job."""
    set_library_variables()
    with extras_of(caller), make_reporter(quiet=not progress) as reporter:
        yield reporter
