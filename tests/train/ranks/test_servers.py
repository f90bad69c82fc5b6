"""The weights of ranks as engine servers receive them; gloo stands in for NCCL, which needs GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import TCPStore
from transformers import AutoModelForCausalLM

from hone.policy.engine import EngineError
from hone.policy.engines.nccl import PublishedWeights, Sender
from hone.train.errors import RankError
from hone.train.publish import folder_fingerprint
from hone.train.ranks import launcher
from hone.train.ranks.learner import RanksLearner, RanksSender
from hone.train.settings import ParallelSettings
from tests.train.ranks import gloo_rank
from tests.train.ranks.cases import make_rows, make_spec, train_steps

pytestmark = [pytest.mark.model, pytest.mark.slow]


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


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with open_setup(tmp_path_factory.mktemp("ranks")) as setup:
        yield setup


def require_published(setup: Setup, folder: Path) -> None:
    """Assert that a receiver gets the tensors of an export, by name and bit for bit, with their digests."""
    learner = setup.learner
    weights, received = setup.send()
    learner.export(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(received) == sorted(index)
    files = {
        name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()
    }
    for name, tensor in received.items():
        assert tensor.dtype == files[name].dtype, name
        assert torch.equal(tensor, files[name]), name
    assert weights.fingerprint == folder_fingerprint(folder)
    copy = folder.with_name("received")
    copy.mkdir()
    save_file(received, copy / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", copy)
    loaded, expected = (
        AutoModelForCausalLM.from_pretrained(path, dtype=learner.spec.dtype).state_dict()
        for path in (copy, folder)
    )
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


@contextmanager
def broken_broadcast(setup: Setup, fault: str) -> Iterator[Future[None]]:
    """Yield a broadcast once the receiver has its first tensor; the second one fails or blocks."""
    gloo_rank.break_next(setup.faults, fault)
    weights, place = setup.learner.published(), setup.rendezvous()
    first = {key: values[:1] for key, values in weights.manifest.items()}
    with ThreadPoolExecutor(2) as pool:
        receiving = pool.submit(gloo_rank.receive, place, first)
        setup.sender.join(place)
        sending = pool.submit(setup.sender.broadcast, weights.tensors())
        receiving.result()
        yield sending


@pytest.mark.full
def test_received_tensors_equal_the_exported_folder(setup: Setup, tmp_path: Path) -> None:
    """Tied embeddings come once; the digests are under both names."""
    train_steps(setup.learner, 1)
    require_published(setup, tmp_path / "exported")


def test_logprobs_after_a_prompt_are_those_of_the_weights(setup: Setup, tmp_path: Path) -> None:
    setup.learner.export(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([[5, 6, 7]])).logits[0, -1], -1)
    found = setup.learner.next_logprobs([5, 6, 7])
    assert np.allclose(found, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("fault", ["fail", "block"])
def test_broken_broadcast_leaves_the_ranks_usable(setup: Setup, tmp_path: Path, fault: str) -> None:
    with broken_broadcast(setup, fault) as sending:
        if fault == "block":
            assert not sending.done()
            setup.sender.leave()
        with pytest.raises(EngineError, match=r"rank 0 could not send the weights: .*unhandled system error"):
            sending.result()
    assert len(setup.learner.logprobs(make_rows(2))) == 2
    train_steps(setup.learner, 1)
    require_published(setup, tmp_path / "exported")


def test_ranks_that_start_again_are_in_no_group() -> None:
    class Ranks:
        starts = 1
        server_address = broadcast = leave_servers = join_servers = lambda *_: None

    sender = RanksSender(Ranks(), "vllm")  # type: ignore[arg-type]
    states = [sender.in_group]
    sender.join({})
    states.append(sender.in_group)
    Ranks.starts = 2
    states.append(sender.in_group)
    sender.join({})
    states.append(sender.in_group)
    sender.leave()
    assert [*states, sender.in_group] == [False, True, False, True, False]


@pytest.mark.full
def test_split_experts_are_received_in_bfloat16(tmp_path: Path) -> None:
    """Each weight is sharded over two dimensions of the mesh; the masters are float32. Then a rank dies."""
    spec = {"architecture": "qwen3_moe", "dtype": "bfloat16", "parallel": ParallelSettings(tensor=2)}
    with open_setup(tmp_path, ranks=4, **spec) as setup:
        train_steps(setup.learner, 1)
        require_published(setup, tmp_path / "exported")
        assert "model.layers.0.mlp.experts.3.down_proj.weight" in setup.learner.published().manifest["names"]
        with broken_broadcast(setup, "block") as sending:
            os.kill(setup.learner.pids[1], signal.SIGKILL)
            with pytest.raises(RankError, match=r"rank 1 was killed by signal 9 during broadcast"):
                sending.result()
