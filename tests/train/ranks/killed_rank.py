"""A rank that kills itself with -9 at a chosen point; used in place of `hone.train.ranks.worker`.

`kill_at` writes a file into the folder that the environment variable names; it counts down the calls.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "HONE_TEST_KILLS"


def kill_at(folder: Path, point: str, rank: int, call: int) -> None:
    """Let a rank die in its `call`-th next call of a point, counted from 1, once."""
    (folder / f"{point}-{rank}").write_text(str(call))


def die_if_due(point: str) -> None:
    file = Path(os.environ[FOLDER]) / f"{point}-{os.environ['RANK']}"
    if not file.exists():
        return
    left = int(file.read_text()) - 1
    if left:
        file.write_text(str(left))
        return
    file.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def watch(owner: Any, name: str, point: str, *, after: bool = False) -> None:
    """Make `owner.name` a point to die at, before or after its work."""
    original: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not after:
            die_if_due(point)
        result = original(*args, **kwargs)
        if after:
            die_if_due(point)
        return result

    setattr(owner, name, watched)


def watch_all() -> None:
    import safetensors.torch
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    from hone.train import sharded_state
    from hone.train.ranks import sharded
    from hone.train.ranks.world import World

    learner = sharded.ShardedLearner
    watch(sharded, "load_sharded", "start")
    watch(learner, "load", "load")
    watch(learner, "forward_backward", "forward")
    watch(sharded, "forward_pass", "pass")
    watch(World, "sum", "all_reduce")
    watch(FSDPParamGroup, "post_backward", "backward")  # once for each layer
    adam = importlib.import_module("torch.optim.adam")
    watch(adam, "adam", "optimizer")  # once for matrices, once for vectors
    watch(learner, "optim_step", "updated", after=True)
    watch(sharded_state, "dcp_save", "shards")  # in a thread
    watch(learner, "is_saved", "saved", after=True)
    watch(learner, "export", "export")
    watch(safetensors.torch, "save_file", "published", after=True)


if __name__ == "__main__":
    from hone.train.ranks.worker import main

    watch_all()
    main()
