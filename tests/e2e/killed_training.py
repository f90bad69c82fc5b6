"""`hone train` in this process, which kills itself with -9 at a chosen moment, or whose rank does.

Run as: python -m tests.e2e.killed_training MOMENT RECIPE [--set ...]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def die_at(owner: Any, name: str, call: int, after: bool = False) -> None:
    """Die in the `call`-th call of `owner.name`, before or after its work."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != call:
            return original(*args, **kwargs)
        if after:
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    setattr(owner, name, wrapped)


def arm(moment: str) -> None:
    import torch

    from hone.rollout.ledger import Ledger
    from hone.train import sharded_state
    from hone.train.ranks import launcher
    from tests.train.ranks import killed_rank

    match moment:
        case "rollout":  # some rollouts of the second step have ended, others run
            die_at(Ledger, "end", 8 + 5)
        case "optimizer_step":  # weights and optimiser state are half of one step, half of the next
            die_at(torch.optim.AdamW, "step", 2, after=True)
        case "checkpoint_writing":  # the second checkpoint has its weights but not its optimiser state
            die_at(sharded_state, "dcp_save", 2)
        case "between_checkpoint_and_commit":
            die_at(Ledger, "commit_step", 2)
        case "rank":  # at the point that `killed_rank.kill_at` was told
            launcher.WORKER = killed_rank.__name__
        case _:
            raise ValueError(moment)


if __name__ == "__main__":
    arm(sys.argv[1])
    from hone.cli import main

    sys.argv = ["hone", "train", *sys.argv[2:]]
    main()
