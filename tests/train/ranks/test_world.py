"""Which GPU a rank takes, and what is said about one that it cannot use."""

from __future__ import annotations

import pytest

from hone.train.errors import TrainError
from hone.train.ranks.world import open_world
from hone.train.settings import ParallelSettings

pytestmark = pytest.mark.model
GIB = 2**30


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """A function that gives this process GPUs of 80 GiB, with the free memory of each."""

    def use(*free_gib: int, local_rank: int, ranks: int = 2) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(free_gib))
        monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
        monkeypatch.setattr(
            "torch.cuda.mem_get_info", lambda device: (free_gib[device.index] * GIB, 80 * GIB)
        )
        for name, value in {"RANK": local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": ranks}.items():
            monkeypatch.setenv(name, str(value))

    return use


def test_machine_with_fewer_gpus_than_ranks_is_refused(gpus) -> None:
    gpus(79, local_rank=1)
    with pytest.raises(TrainError, match="rank 1 of this machine needs a GPU of its own, but only 1 can be"):
        open_world(ParallelSettings(), 60.0)


def test_gpu_that_another_process_fills_is_named(gpus) -> None:
    gpus(79, 12, local_rank=1)
    with pytest.raises(
        TrainError, match=r"GPU 1 has 12\.0 GiB free of 80\.0: another process fills it; stop"
    ):
        open_world(ParallelSettings(), 60.0)


def test_ranks_that_do_not_fill_the_mesh_are_refused(gpus) -> None:
    gpus(79, 79, 79, local_rank=0, ranks=3)
    with pytest.raises(TrainError, match=r"3 ranks were started, but train\.parallel has 2"):
        open_world(ParallelSettings(sequence=2), 60.0)
