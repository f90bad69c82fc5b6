"""The stages of the arena: their rows and the start model of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.parts.arena_cell import FULL_WINDOW


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
    rows: Mapping[str, Sequence[str]]  # name -> arguments of `arena_cell.py`
    beside: Sequence[str] = ()  # rows of the stage "algorithms" that stand in its table, too


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
# The highest means over the three seeds of the stage "algorithms".
BEST = ("step-wise", "REINFORCE++ with group baseline", "REINFORCE++", "DAPO")
# Enough training tasks for an algorithm that replaces groups without signal.
SIZES = ("train.steps=14", "demonstrations.rollouts=3000", "tasks.train=3336")
QUICKSTART = Start(folder="start", sets=SIZES)


def harder(title: str, curriculum: str, *sets: str) -> Stage:
    """Return the best algorithms on another curriculum, with a start model of its own."""
    start = Start(folder=f"start-{curriculum}", sets=[*SIZES, f"tasks.curriculum={curriculum}", *sets])
    return Stage(title=title, start=start, rows={row: ALGORITHMS[row] for row in BEST})


ON_POLICY = "staleness 0"
MISMATCHES: Mapping[str, Sequence[str]] = {  # between the engine's tokens and the trainer's
    ON_POLICY: [],
    "staleness 2": ["rollout.max_staleness=2"],
    "staleness 8": ["rollout.max_staleness=8"],
    "always 8 steps old": [FULL_WINDOW, "rollout.max_staleness=8"],
    "bfloat16 engine": ["engine.dtype=bfloat16"],
}


def corrected(kind: str) -> list[str]:
    """Return the settings of a correction."""
    if kind == "none":
        return []
    return ["train.loss.old_logprobs=recomputed", f"train.corrections.kind={kind}"]


STAGES: Mapping[str, Stage] = {
    "algorithms": Stage(title="Algorithms", start=QUICKSTART, rows=ALGORITHMS),
    "corrections": Stage(
        title="Staleness and corrections",
        start=QUICKSTART,
        rows={
            f"{mismatch}, {kind}": [*name("grpo"), *sets, *corrected(kind)]
            for mismatch, sets in MISMATCHES.items()
            for kind in ("none", "truncate", "mask")
            if (mismatch, kind) != (ON_POLICY, "none")  # it is GRPO
        },
        beside=["GRPO"],
    ),
    "adapters": Stage(
        title="Adapters",
        start=QUICKSTART,
        rows={"LoRA, rank 16": [*name("grpo"), "train.lora.rank=16", "train.optimizer.lr=3e-3"]},
        beside=["GRPO"],
    ),
    "two_bugs": harder("Two bugs at once", "two_bugs"),
    "more_files": harder("More files", "more_files"),
    "three_edits": harder("Three edits", "three_edits"),
}
