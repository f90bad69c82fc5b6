"""A quickstart in miniature, once per test session: every stage is real, only the numbers are small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "recipes" / "quickstart.toml"
HONE = Path(sys.executable).with_name("hone")
TIMEOUT_S = 600.0  # of one command; what takes a minute here may take many on a busy machine

SMALL = {
    "tasks.train": 46,
    "tasks.test": 6,
    "tasks.unseen": 2,
    "demonstrations.rollouts": 40,
    "demonstrations.graded": 4,
    "sft.epochs": 8,
    "sft.optimizer.warmup_steps": 5,
    "train.steps": 3,
    "groups_per_step": 2,
    "rollout.group_size": 4,
    "rollout.attempts": 1,
    # so small a model resolves nothing; outcomes that differ in worth give it a gradient all the same
    "rollout.rewards": "{ unresolved = -0.2, no_patch = -0.6, format_limit = -0.7, context_limit = -0.8 }",
}

ROLLOUTS_A_STEP = 2 * 4  # groups_per_step times rollout.group_size


def hone(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [HONE, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=REPOSITORY
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def train(*arguments: str, command: str = "train") -> None:
    """Train to the end; a run whose rollouts all end in the same way learns nothing, and says so."""
    done = hone(command, *arguments, check=False)
    assert done.returncode == 0 or "nothing was learnt" in done.stderr, done.stderr


def sets(run_dir: Path, **more: object) -> list[str]:
    values = {"run_dir": run_dir, **SMALL, **{key.replace("__", "."): value for key, value in more.items()}}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
