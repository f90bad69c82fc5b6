"""The stages of the arena: their rows and the start model of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start model: made once, shared by all rows and seeds of the stages that name it."""

    folder: str
    sets: Sequence[str] = ()  # of the start model, and of every training that begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Rows that are compared with each other."""

    title: str
    start: Start
    rows: Mapping[str, Sequence[str]]  # name -> settings, as a.b=value


def name(algorithm: str, **options: object) -> list[str]:
    return [f"train.algorithm.name={algorithm}", *(f"train.algorithm.{k}={v}" for k, v in options.items())]


# The recipe's clip_high = 0.28 is removed where an algorithm has no such bound, or one of another size.
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "GRPO": name("grpo"),
    "Dr. GRPO": name("dr_grpo"),
    "RLOO": name("rloo"),
    "REINFORCE++": name("reinforce_pp"),
    "REINFORCE++ with group baseline": name("reinforce_pp", group_baseline="true"),
    "DAPO": [*name("dapo", overlong_tokens=300, overlong_cache=100), "rollout.replace_constant_groups=1"],
    "GSPO": [*name("gspo"), "train.loss.clip_high=4e-4"],
    "CISPO": [*name("cispo"), "train.loss.clip_high=4.0"],
    "OPO": name("opo"),
    "PPO": name("ppo"),
    "step-wise": [*name("step_wise"), "progress.enabled=true", "progress.coefficient=0.5"],
}
BEST = ("GSPO", "PPO", "GRPO", "RLOO")  # of the stage "algorithms"
ONE_BUG = Start(folder="start")


def harder(title: str, curriculum: str, *sets: str) -> Stage:
    """Return the best algorithms on another curriculum, with a start model of its own."""
    start = Start(folder=f"start-{curriculum}", sets=[f"tasks.curriculum={curriculum}", *sets])
    return Stage(title=title, start=start, rows={row: ALGORITHMS[row] for row in BEST})


STAGES: Mapping[str, Stage] = {
    "algorithms": Stage(title="Algorithms", start=ONE_BUG, rows=ALGORITHMS),
    "corrections": Stage(
        title="Staleness and corrections",
        start=ONE_BUG,
        rows={
            f"staleness {staleness}, {kind}": [
                *name("grpo"),
                f"rollout.max_staleness={staleness}",
                *(
                    []
                    if kind == "none"
                    else ["train.loss.old_logprobs=recomputed", f"train.corrections.kind={kind}"]
                ),
            ]
            for staleness in (0, 2, 8)
            for kind in ("none", "truncate", "mask")
        },
    ),
    "adapters": Stage(
        title="Adapters",
        start=ONE_BUG,
        rows={
            "all weights": name("grpo"),
            "LoRA, rank 16": [*name("grpo"), "train.lora.rank=16", "train.optimizer.lr=3e-3"],
        },
    ),
    "two_bugs": harder("Two bugs at once", "two_bugs"),
    "more_files": harder("More files", "more_files"),
    "three_edits": harder("Three edits", "three_edits"),
}
