"""Limit torch's intra-op threads per calling thread."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import threading

import torch

# Without the lock a concurrent caller would read this caller's limit as the global one.
_lock = threading.Lock()


def use_threads(count: int) -> None:
    """Make tensor operations of this thread use `count` threads; other threads keep their number."""
    with _lock:
        # The query also initialises this thread; done later, that would undo the limit.
        previous = torch.get_num_threads()
        torch.set_num_threads(count)
        # New threads get the number that was set last, so another thread sets the old number again.
        restorer = threading.Thread(target=torch.set_num_threads, args=(previous,))
        restorer.start()
        restorer.join()
