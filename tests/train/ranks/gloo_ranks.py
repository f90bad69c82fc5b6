"""Two ranks whose weights a receiver in the process of the test gets; gloo stands in for NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.distributed import TCPStore

from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.train.ranks import launcher
from hone.train.ranks.learner import RanksLearner
from tests.train.ranks import gloo_rank
from tests.train.ranks.cases import make_spec


@dataclass
class Setup:
    """Ranks whose sender is a `GlooSender`, and one receiver."""

    learner: RanksLearner
    sender: Sender
    faults: Path
    store: TCPStore
    groups: Iterator[int]

    def send(self) -> tuple[PublishedWeights, dict[str, Tensor]]:
        """Publish to a new group; return what was announced, and what the receiver got."""
        weights = self.learner.published()
        place = self.rendezvous()
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(gloo_rank.receive, place, weights.manifest)
            self.sender.leave()
            self.sender.join(place)
            self.sender.broadcast(weights.tensors())
            return weights, receiving.result()

    def rendezvous(self) -> dict[str, Any]:
        address = {"master_address": "127.0.0.1", "master_port": self.store.port, "world_size": 2}
        return {**address, "group": f"servers {next(self.groups)}"}


@contextmanager
def open_setup(folder: Path, **spec: Any) -> Iterator[Setup]:
    faults = folder / "faults"
    faults.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "WORKER", gloo_rank.__name__)
        patch.setenv(gloo_rank.FOLDER, str(faults))
        learner = RanksLearner(make_spec(folder, **spec), logs=folder / "logs")
    try:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield Setup(learner, learner.sender("vllm"), faults, store, count())
    finally:
        learner.close()
