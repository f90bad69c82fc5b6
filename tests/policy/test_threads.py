from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hone.policy.local import use_threads

pytestmark = pytest.mark.model


def test_concurrent_thread_limits_leave_other_threads_alone() -> None:
    here = torch.get_num_threads()
    for _ in range(20):
        together = threading.Barrier(4)

        def limit(barrier: threading.Barrier = together) -> int:
            barrier.wait(timeout=20)
            use_threads(here + 1)
            return torch.get_num_threads()

        with ThreadPoolExecutor(4) as pool:
            assert [job.result() for job in [pool.submit(limit) for _ in range(4)]] == [here + 1] * 4
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == here
    assert torch.get_num_threads() == here
