"""A 64-bit digest of a tensor's values; the digests of parts of a tensor add up to the digest of the whole.

    digest(B) = sum over rows r of u[r] * (sum over columns c of int32(bits(B[r, c]) * v[c]))   mod 2^64

`bits` are the raw bits of a value, with -0.0 as +0.0, and u and v are fixed odd numbers, so that every single
change of a value changes the digest, and so does, but for a chance of about 2^-32, every other change: an
update of all values, two rows or columns that changed places. A server with tensor parallelism holds parts of
a tensor: each worker computes the digest of its own part, given the part's position.

Imported by the workers of vLLM and SGLang, too: imports nothing of Hone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 25}  # values at once: a few MiB of a CPU's cache, 128 MiB of a GPU
_MASK = (1 << 64) - 1


def as_matrix(tensor: Tensor) -> Tensor:
    """Return `tensor` with two dimensions, rows first; a vector is one column."""
    if tensor.ndim == 2:  # also one without values, such as a worker's share of a small vocabulary
        return tensor
    return tensor.reshape(tensor.shape[0] if tensor.ndim else 1, -1)


def tensor_digest(tensor: Tensor, row: int = 0, column: int = 0) -> int:
    """Return the digest of a matrix or vector whose first value is at (row, column) of the whole tensor.

    Returns a number below 2^64. The digests of parts that cover a tensor add up modulo 2^64 to its own.
    """
    matrix = as_matrix(tensor.detach())
    rows, columns = matrix.shape
    if matrix.numel() == 0:
        return 0
    across = _weights(column, columns, torch.int32).to(matrix.device)
    down = _weights(row, rows, torch.int64).to(matrix.device)
    step = max(1, _CHUNK.get(matrix.device.type, 1 << 22) // columns)
    total = torch.zeros((), dtype=torch.int64, device=matrix.device)
    for start in range(0, rows, step):
        sums = (_bits(matrix[start : start + step]) * across).sum(1, dtype=torch.int64)
        total += (sums * down[start : start + step]).sum()
    return int(total.item()) & _MASK


def add_digests(*digests: int) -> int:
    """Return the digest of a tensor from those of its parts."""
    return sum(digests) & _MASK


def _bits(values: Tensor) -> Tensor:
    """Return the raw bits of values as int32."""
    if values.dtype.is_floating_point and values.element_size() > 1:
        values = values + 0.0  # -0.0 becomes +0.0
    size = values.element_size()
    if size == 8:
        raise ValueError(f"a tensor of {values.dtype} cannot be compared: publish weights of 32 bits or less")
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return values.contiguous().view(kinds[size]).to(torch.int32)


def _weights(start: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return the numbers start .. start + count - 1 of the fixed sequence, odd and of `dtype`."""
    size = 1 << max(10, (start + count - 1).bit_length())
    return _sequence(size, dtype)[start : start + count]


@lru_cache(maxsize=64)
def _sequence(length: int, dtype: torch.dtype) -> Tensor:
    """Return the outputs of SplitMix64 (Steele et al., 2014) for the states 1, 2, ..., each made odd."""
    with np.errstate(over="ignore"):
        z = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    if dtype == torch.int32:
        return torch.from_numpy(((z >> np.uint64(32)).astype(np.uint32) | np.uint32(1)).view(np.int32))
    return torch.from_numpy((z | np.uint64(1)).view(np.int64))
