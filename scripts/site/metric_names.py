"""What each metric of `metrics.jsonl` means: those that a chart of `hone view` shows, and all others."""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from hone.view.panels import CHARTS

# Metrics without a chart of their own; `*` stands for any name.
OTHERS: dict[str, str] = {
    "kind": "the series: `train` (RL), `sft`, `validation`",
    "step": "the step from 0, of its series; of a validation, the training steps before it",
    "time": "Unix time in seconds at which the record was written; a resumed run may write a step twice, and "
    "the later record counts",
    "reward": "mean reward of the rollouts in the baseline, before advantages",
    "resolve_rate": "share of the rollouts in the baseline that resolved their task; of a validation, of all "
    "its samples",
    "rollouts": "rollouts of the step, infrastructure faults included",
    "masked": "rollouts without a gradient that count in the baseline",
    "excluded": "rollouts lost to infrastructure faults: neither trained nor in the baseline",
    "samples": "sequences to train on: one per branch of a rollout that has sampled tokens",
    "outcome/*": "rollouts with that [outcome](outcomes.md)",
    "stage_s/*": "mean seconds of a rollout in that stage; `model` and `exec` are parts of `agent`",
    "turn_reward": "mean reward of single turns, with [step rewards](../19-step-rewards.md)",
    "parked": "mean share of the rollouts whose sandbox is parked while a reply is sampled",
    "idle_steps": "steps in a row, this one included, without an optimiser step; "
    "`train.max_idle_steps` stops the run",
    "tasks/no_signal": "share of the tasks seen so far whose last visits gave no signal: always resolved, or "
    "never",
    "optimizer_steps": "optimiser steps of this step",
    "branch_tokens": "tokens of all branches, prefixes counted in each",
    "tree": "share of the branch tokens that shared prefixes saved",
    "passes/*": "forward passes with that attention: `mask` over a tree, `off` over one sequence",
    "skipped/*": "optimiser steps left out for that reason: `no_signal`, `non_finite_gradient`",
    "ratio_max_deviation": "largest |ratio - 1| of a token",
    "mismatch/effective_sample_size": "of the weights p(trainer) / p(engine), as a share of the tokens; "
    "1: both compute one policy",
    "corrections/effective_sample_size": "of the importance weights that the corrections apply, as a share "
    "of the tokens",
    "corrections/*": "of the [corrections](../24-asynchronous-training.md) between engine and trainer",
    "value/explained_variance": "share of the variance of its targets that the critic explains",
    "routing/replayed": "share of the computed tokens that used the experts of the engine, of a mixture of "
    "experts with replay",
    "distill/tokens": "tokens that the teacher scored",
    "distill/seconds": "seconds that the teacher took",
    "judge/*": "of the judge: turns and votes, milliseconds of a vote",
    "progress/states": "turns after which the hidden tests ran because files had changed",
    "progress/unknown_share": "share of the turns whose progress is unknown",
    "n": "samples of a validation without infrastructure faults",
    "low": "lower end of the 95 % interval of the validation's resolve rate",
    "high": "upper end of that interval",
}


def is_known(name: str) -> bool:
    """Return whether the reference explains a metric."""
    charted = {each for chart in CHARTS for each in chart.names}
    return name in charted or any(fnmatch.fnmatchcase(name, pattern) for pattern in OTHERS)


def metrics_page() -> str:
    """Return every metric of a run: those of the charts with how to read them, then the others."""
    lines = [
        "# Metrics",
        "",
        "Every metric of `metrics.jsonl`, a line per step and series, with one key per metric. TensorBoard "
        "and the [trackers](../07-training.md) get the same under the same names; "
        "`hone.read_run(DIR).steps` has them as a table, and [`hone view`](../35-view.md) draws those of "
        "the first part. A metric that a run does not have is absent.",
        "",
        "## In the charts of a run",
        "",
        "| metric | meaning | unit | how to read it |",
        "|---|---|---|---|",
    ]
    for chart in CHARTS:
        for name, title in chart.names.items():
            lines.append(f"| `{name}` | {title.replace('|', '&#124;')} | {chart.unit} | {chart.note} |")
    lines += ["", "## All others", "", "| metric | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning.replace('|', '&#124;')} |" for name, meaning in OTHERS.items()]
    return "\n".join([*lines, ""])
