"""The digests of published weights, and their comparison with those of the weights that a server holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN = 3  # tensors that an error message names

Report = Mapping[str, Sequence[Sequence[Any]]]
"""What one worker holds: tensor name -> [row, column, rows, columns, dtype, digest] of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """One published tensor, seen as a matrix: a vector is one column."""

    rows: int
    columns: int
    dtype: str  # such as `bfloat16`
    digest: str  # 16 hexadecimal digits, see `inside/tensor_digest.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The digest of every published tensor, by the name that it has in a Hugging Face checkpoint.

    Tied weights have an entry under each of their names: a server may hold a copy of its own.
    """

    tensors: Mapping[str, TensorDigest]

    @property
    def adapter_rank(self) -> int:
        """Return the rank of the adapters if adapters alone were published; 0 otherwise."""
        return next((held.rows for name, held in self.tensors.items() if "lora_A" in name), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A server's weights beside the published ones."""

    differing: Sequence[str] = ()  # tensors of other values than the published ones
    unproven: Sequence[str] = ()  # tensors that the server cannot show, or not in a known layout
    reasons: Sequence[str] = ()  # of the first of either

    @property
    def proven(self) -> bool:
        return not self.differing and not self.unproven


def compare(published: Fingerprint, reports: Sequence[Report]) -> Comparison:
    """Compare the published tensors with what the workers of a server hold together.

    Workers may hold equal copies of a part; parts that differ must cover the tensor.
    """
    differing: dict[str, str] = {}
    unproven: dict[str, str] = {}
    for name, tensor in published.tensors.items():
        parts = [(worker, part) for worker, report in enumerate(reports) for part in report.get(name, ())]
        reason, proven = _difference(tensor, parts)
        if not proven:
            (unproven if proven is None else differing)[name] = f"{name}: {reason}"
    reasons = [*differing.values(), *unproven.values()][:_SHOWN]
    return Comparison(differing=list(differing), unproven=list(unproven), reasons=reasons)


def _difference(tensor: TensorDigest, parts: Sequence[tuple[int, Sequence[Any]]]) -> tuple[str, bool | None]:
    """Return ("", True) for a proven tensor, else the reason and False for other values, None for unknown."""
    if not parts:
        return "no worker shows it", None
    found: dict[tuple[int, int, int, int], tuple[int, str]] = {}
    copies = ""
    for worker, (row, column, rows, columns, dtype, digest) in parts:
        if dtype != tensor.dtype:
            return f"held as {dtype} and published as {tensor.dtype}", None
        other, known = found.setdefault((row, column, rows, columns), (worker, digest))
        if known != digest:
            copies = f"workers {other} and {worker} hold different copies"
    # before the copies: different parts of a tensor that is split in an unknown way look like copies of one
    if sum(rows * columns for _, _, rows, columns in found) != tensor.rows * tensor.columns:
        return f"its parts do not make up {tensor.rows} x {tensor.columns} values", None
    if copies:
        return copies, False
    total = sum(int(digest, 16) for _, digest in found.values()) % (1 << 64)
    if total != int(tensor.digest, 16):
        return f"digest {total:016x} instead of {tensor.digest}", False
    return "", True


def describe(names: Sequence[str]) -> str:
    """Return the first names of a list for a message, with the number of the others."""
    return ", ".join(_first(names))


def _first(names: Sequence[str]) -> Iterator[str]:
    yield from names[:_SHOWN]
    if len(names) > _SHOWN:
        yield f"and {len(names) - _SHOWN} more"
