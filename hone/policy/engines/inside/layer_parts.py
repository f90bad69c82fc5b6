"""Which parts of the published tensors a server's layers hold, and the digests of these parts.

SGLang's layers have the class names and attributes of vLLM's, so this is the same for both. Classes are told
apart by name, because only one of the packages is installed. Imports nothing of Hone.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_digest import add_digests, tensor_digest
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows `start` to `stop` of a layer's matrix, which are at (row, column) of the published tensor."""

    name: str
    start: int
    stop: int
    row: int = 0
    column: int = 0


def is_a(layer: Any, name: str) -> bool:
    """Return whether a class named `name` is among the classes of `layer`."""
    return any(kind.__name__ == name for kind in type(layer).__mro__)


def named(part: Part, parameter: str) -> Part:
    """Return the part of a layer's `weight` or `bias`; a bias has one column."""
    column = part.column if parameter == "weight" else 0
    return Part(
        name=f"{part.name}.{parameter}", start=part.start, stop=part.stop, row=part.row, column=column
    )


def digests_of_parts(
    blocks: Iterable[tuple[int, Tensor]], parts: Sequence[Part]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digest of each part of a matrix, which comes in blocks of columns: (first column, block)."""
    sums = dict.fromkeys(parts, 0)
    columns, dtype = 0, ""
    for first, block in blocks:
        columns, dtype = first + block.shape[1], str(block.dtype).removeprefix("torch.")
        for part in parts:
            rows = block[part.start : part.stop]
            sums[part] = add_digests(sums[part], tensor_digest(rows, part.row, part.column + first))
    for part, digest in sums.items():
        shape = [part.row, part.column, part.stop - part.start, columns]
        yield part.name, [*shape, dtype, f"{digest:016x}"]


def linear_parts(path: str, layer: Any, packed: Mapping[str, Sequence[str]]) -> list[Part]:
    """Return the parts of a linear layer; `packed` names the tensors that a fused layer consists of."""
    parent, _, last = path.rpartition(".")
    if not is_a(layer, "ColumnParallelLinear"):
        split = is_a(layer, "RowParallelLinear")
        column = layer.tp_rank * layer.input_size_per_partition if split else 0
        return [Part(name=path, start=0, stop=layer.output_size, column=column)]
    sizes: list[int] = layer.output_partition_sizes  # of this worker
    names = packed.get(last, ()) if len(sizes) > 1 else ()
    fused = len(names) != len(sizes)  # then the published tensor is fused as well
    replicas = [1, *[getattr(layer, "num_kv_head_replicas", 1)] * (len(sizes) - 1)]
    parts: list[Part] = []
    start = base = 0
    for index, size in enumerate(sizes):
        name = path if fused else f"{parent}.{names[index]}".removeprefix(".")
        row = base + layer.tp_rank // replicas[index] * size
        parts.append(Part(name=name, start=start, stop=start + size, row=row))
        start += size
        base += size * layer.tp_size // replicas[index] if fused else 0
    return parts


def vocabulary_parts(path: str, layer: Any) -> list[Part]:
    """Return the part of the vocabulary that this worker holds, without the rows that pad it."""
    indices = layer.shard_indices
    first, last = indices.org_vocab_start_index, indices.org_vocab_end_index
    return [Part(name=path, start=0, stop=last - first, row=first)]


def expert_digests(
    name: str, w13: Tensor, w2: Tensor, *, size: int, first: int
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digests of the expert `name`.

    Args:
        w13: the gate above the up projection, each with `size` rows and padding.
        w2: the down projection, with `size` columns and padding.
        size: the intermediate size of this worker, whose values begin at `first`.
    """
    up = w13.shape[0] // 2
    parts = [
        Part(name=f"{name}.gate_proj.weight", start=0, stop=size, row=first),
        Part(name=f"{name}.up_proj.weight", start=up, stop=up + size, row=first),
    ]
    yield from digests_of_parts([(0, w13)], parts)
    down = Part(name=f"{name}.down_proj.weight", start=0, stop=w2.shape[0], column=first)
    yield from digests_of_parts([(0, w2[:, :size])], [down])


def adapter_digests(part: Part, a: Tensor, b: Tensor) -> Iterator[tuple[str, list[Any]]]:
    """Yield the digests of the A [rank, inputs] and B [outputs, rank] that adapt a part, by peft's names."""
    name = f"base_model.model.{part.name}"
    of_a = Part(name=f"{name}.lora_A.weight", start=0, stop=len(a), column=part.column)
    of_b = Part(name=f"{name}.lora_B.weight", start=0, stop=len(b), row=part.row)
    yield from digests_of_parts([(0, a)], [of_a])
    yield from digests_of_parts([(0, b)], [of_b])
