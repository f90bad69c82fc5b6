"""The weights of ranks as engine servers receive them; gloo stands in for NCCL, which needs GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hone.policy.engine import EngineError
from hone.train.errors import RankError
from hone.train.publish import folder_fingerprint
from hone.train.ranks.learner import RanksSender
from hone.train.settings import ParallelSettings
from tests.train.ranks import gloo_rank
from tests.train.ranks.cases import make_rows, train_steps
from tests.train.ranks.gloo_ranks import Setup, open_setup

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.xdist_group("ranks")]


def require_published(setup: Setup, folder: Path) -> None:
    """Assert that a receiver gets the tensors of an export, by name and bit for bit, with their digests."""
    learner = setup.learner
    weights, received = setup.send()
    learner.export(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert sorted(received) == sorted(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in received.values())
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
def test_received_tensors_equal_the_exported_folder(tmp_path: Path) -> None:
    """Tied embeddings come once; the digests are under both names."""
    with open_setup(tmp_path) as setup:
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


def test_killed_rank_is_named_and_no_rank_is_left(setup: Setup) -> None:
    """Last of the tests with these ranks."""
    learner = setup.learner
    pids = learner.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankError, match=r"rank 1 was killed by signal 9 .*; all ranks are stopped"):
        learner.forward_backward(make_rows())
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(RankError, match="restart"):
        learner.optim_step(1e-3)


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
