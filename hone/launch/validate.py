"""Validation inside a training: the run's own engine, agent and sandboxes on the validation tasks.

Each validation is an evaluation in `run_dir/validation/step-000010`, with its summary, report and rollouts.
Its rollouts are not in the ledger and are never trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hone.config import RunSettings, identity_of
from hone.evaluate import runner
from hone.launch.evaluate import EvaluationDisplay
from hone.launch.reporter import Reporter
from hone.launch.runtime import Runtime
from hone.rollout.episode import RolloutContext
from hone.train.metrics import MetricsWriter
from hone.train.validate import Validator
from hone.types import Task
from hone.utils.concurrency import run_in_thread
from hone.utils.files import remove_directory
from hone.view.web.report import write_report

METRICS = ("resolve_rate", "low", "high", "n", "resolved", "errors", "no_patch", "avg_steps", "tokens")


def make_validator(
    settings: RunSettings,
    runtime: Runtime,
    context: RolloutContext,
    reporter: Reporter,
    tasks: Sequence[Task],
    metrics: MetricsWriter,
    on_result: Callable[[int, Mapping[str, float]], None],
) -> Validator:
    """Return the validator of a run, which measures the weights that the engine of `context` samples from."""
    evaluation = dataclasses.replace(context, scorers=None, grader=runtime.evaluation_grader)
    return Validator(
        settings.train.validate,
        steps=settings.train.steps,
        run_dir=settings.run_dir,
        metrics=metrics,
        evaluate=lambda version: validate(settings, evaluation, reporter, tasks, version),
        on_result=on_result,
    )


async def validate(
    settings: RunSettings, context: RolloutContext, reporter: Reporter, tasks: Sequence[Task], version: int
) -> Mapping[str, float]:
    """Return the metrics of the weights that the engine samples from, after `version` training steps.

    An interrupted validation starts again: its rollouts may be of weights that the run has lost.
    """
    out = settings.run_dir / "validation" / f"step-{version:06d}"
    if out.exists():
        await run_in_thread(remove_directory, out)
    evaluate = settings.evaluate.model_copy(
        update={"split": "validation", "samples": settings.train.validate.samples, "temperatures": ()}
    )
    title = f"validating after step {version}" if version else "validating the start model"
    with reporter.stage(title, len(tasks) * evaluate.samples) as stage:
        display = EvaluationDisplay(stage, priced=False)
        summary = await runner.evaluate(
            tasks,
            context,
            evaluate,
            out,
            _info(settings, out, version),
            progress=display.on_sample,
        )
        await run_in_thread(write_report, out)
        low, high = summary["low"], summary["high"]
        stage.set_status(
            f"resolved {summary['resolved']} of {summary['n']}: {100 * summary['resolve_rate']:.1f} % "
            f"[{100 * low:.1f}, {100 * high:.1f}]"
        )
    return {name: summary[name] for name in METRICS}


def _info(settings: RunSettings, out: Path, version: int) -> runner.EvalInfo:
    assert settings.model is not None, "a training has a model"
    return runner.EvalInfo(
        model=f"{settings.run_dir} after step {version}",
        data=str(settings.tasks.validation_source or f"validation tasks of {settings.tasks.source}"),
        seed=settings.seed,
        identity={**identity_of(settings), "validation": out.name},
        trainable=True,
        args=settings.model_dump(mode="json", exclude={"run_dir"}),
    )
