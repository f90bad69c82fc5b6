"""What a small policy learns from a teacher: reverse KL and resolve rate, before and after distillation.

    python benchmarks/distill.py [--seeds 0 1 2] [--out DIR]

Per seed, on the quickstart's tasks: a random tiny model learns from demonstrations that are right 40 % of the
time (the policy); a copy of it learns from further ones that are always right (the teacher); then the policy
trains on its own rollouts with the teacher's scores alone (`train.distill`, no outcome reward). Every rollout
and every grading is real. The same command continues what was stopped. The last line is JSON:

reverse_kl              of each seed: mean log q - log p per token, in nats, in the first and the last step
resolve_rate            of each seed, on tasks that nothing trained on: before, after, and the teacher's
kl_left                 median over the seeds: last reverse KL, by the first
resolved_more           median over the seeds: resolve rate after, minus before
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from hone.config import RunSettings, resolve
from hone.launch.evaluate import run_evaluation
from hone.launch.reporter import Reporter
from hone.launch.rundir import claim, with_model
from hone.launch.runtime import Runtime, open_runtime
from hone.launch.sft import make_start_model, record, run_sft
from hone.launch.train import run_training
from hone.tasks.sources import load_splits
from hone.types import Task

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "quickstart.toml"
DEMONSTRATED, TAUGHT, PRACTISED, TESTED = 480, 320, 128, 64  # tasks of each stage; no two stages share one
COMMON = [
    f"tasks.train={DEMONSTRATED + TAUGHT + PRACTISED}",
    f"tasks.test={TESTED}",
    "tasks.unseen=1",
    f"demonstrations.rollouts={DEMONSTRATED}",
    "demonstrations.graded=0",
    "sft.epochs=5",
    "rollout.group_size=2",
    "groups_per_step=16",
    "train.steps=8",
    "train.batch.mini_batches=2",
    "train.checkpoint.every=4",
]
TEACHER = [
    "demonstrations.agent.accuracy=1.0",
    f"demonstrations.rollouts={TAUGHT}",
    "sft.epochs=3",
    "sft.optimizer.lr=2e-3",
]


def settings_of(seed: int, run_dir: Path, *sets: str) -> RunSettings:
    return resolve(RECIPE, [f"run_dir={run_dir}", f"seed={seed}", *COMMON, *sets])


async def run(seed: int, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Return the figures of one seed."""
    settings = settings_of(seed, out / "policy")
    splits = load_splits(settings.tasks)
    demonstrated = splits.train[:DEMONSTRATED]
    taught = splits.train[DEMONSTRATED : DEMONSTRATED + TAUGHT]
    practised = splits.train[DEMONSTRATED + TAUGHT :]
    async with open_runtime(settings) as runtime:
        claim(settings)
        start, _ = await make_start_model(settings, runtime, reporter, demonstrated)
        teacher = await make_teacher(seed, out / "teacher", start, taught, runtime, reporter)
        distilling = with_model(
            settings_of(
                seed,
                out / "distilled",
                "train.distill.enabled=true",
                f"train.distill.model.path={teacher}",
                "train.distill.engine.threads=1",
            ),
            start,
        )
        claim(distilling)
        trained = await run_training(distilling, runtime, reporter, tasks=practised)
        rates = {}
        for name, model in (("before", start), ("after", trained.checkpoint), ("teacher", teacher)):
            summary = await run_evaluation(
                with_model(settings, model),
                runtime,
                reporter,
                tasks=splits.test,
                out=out / name,
                title=f"measuring: {name}",
            )
            rates[name] = {key: summary[key] for key in ("resolve_rate", "low", "high", "n")}
    steps = [json.loads(line) for line in (out / "distilled" / "metrics.jsonl").read_text().splitlines()]
    kl = [step["distill/kl"] for step in steps if "distill/kl" in step]
    return {"seed": seed, "reverse_kl": kl, "rates": rates}


async def make_teacher(
    seed: int, run_dir: Path, start: Path, tasks: list[Task], runtime: Runtime, reporter: Reporter
) -> Path:
    """Return the model in `start`, trained further on demonstrations that are always right."""
    settings = with_model(settings_of(seed, run_dir, *TEACHER), start)
    claim(settings)
    recorded = await record(settings, runtime, reporter, tasks=tasks)
    return (await asyncio.to_thread(run_sft, settings, recorded, reporter)).checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "distill")
    options = parser.parse_args()
    reporter = Reporter(Console(stderr=True))
    results, seconds = [], []
    for seed in options.seeds:
        started = time.monotonic()
        results.append(asyncio.run(run(seed, options.out / f"seed-{seed}", reporter)))
        seconds.append(round(time.monotonic() - started, 1))
        print(json.dumps(results[-1]), flush=True)
    kl = [result["reverse_kl"] for result in results]
    rates = [{name: rate["resolve_rate"] for name, rate in result["rates"].items()} for result in results]
    report = {
        "benchmark": "distill",
        "seeds": options.seeds,
        "reverse_kl": [[round(each[0], 4), round(each[-1], 4)] for each in kl],
        "resolve_rate": rates,
        "kl_left": round(statistics.median(each[-1] / each[0] for each in kl), 3),
        "resolved_more": round(statistics.median(rate["after"] - rate["before"] for rate in rates), 3),
        "seconds": seconds,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
