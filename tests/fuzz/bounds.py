"""Deterministic measures of work: lines of Python that run, and bytes that are held at once."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")


def steps(read: Callable[[Input], object], given: Input) -> int:
    """Return how many lines of Python run while `given` is read; each iteration of a loop is one."""
    count = 0

    def trace(_frame: object, _event: str, _argument: object) -> object:
        nonlocal count
        count += 1
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        read(given)
    finally:
        sys.settrace(previous)
    return count


def peak_bytes(read: Callable[[Input], object], given: Input) -> int:
    """Return the most memory that Python held for reading `given`, in bytes."""
    tracemalloc.start()
    try:
        read(given)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
