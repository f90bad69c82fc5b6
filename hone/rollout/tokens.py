"""A token tree as a Parquet file: one row per token; a node without tokens has one row."""

# pyarrow publishes no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hone.types import Node, TokenTree

_TOKENS = pa.schema(
    [
        pa.field("node", pa.int32(), nullable=False),
        pa.field("parent", pa.int32()),  # null at a root
        pa.field("sampled", pa.bool_(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("token", pa.int32()),  # null: the node holds no token
        pa.field("logprob", pa.float32()),  # null where not sampled
        pa.field("version", pa.int32()),  # null where not sampled
    ]
)


def to_parquet(tree: TokenTree) -> bytes:
    """Return the tree as a Parquet file; takes about 1 ms."""
    nodes = tree.nodes
    rows = np.array([max(len(node.tokens), 1) for node in nodes], np.int64)
    filled = np.repeat(np.array([len(node.tokens) > 0 for node in nodes], np.bool_), rows)
    sampled = np.repeat(np.array([node.sampled for node in nodes], np.bool_), rows)

    def per_node(values: list[int | None]) -> pa.Array:
        return pa.array(values, pa.int32()).take(pa.array(np.repeat(np.arange(len(nodes)), rows)))

    def per_token(arrays: list[npt.NDArray[Any]], dtype: type, valid: npt.NDArray[np.bool_]) -> pa.Array:
        padded = [np.zeros(n, dtype) if len(a) != n else a for a, n in zip(arrays, rows, strict=True)]
        return pa.array(np.concatenate([np.zeros(0, dtype), *padded]), mask=~valid)

    columns = [
        per_node(list(range(len(nodes)))),
        per_node([node.parent for node in nodes]),
        pa.array(sampled),
        per_node([node.turn for node in nodes]),
        per_token([node.tokens for node in nodes], np.int32, filled),
        per_token([node.logprobs for node in nodes], np.float32, filled & sampled),
        per_token([node.version for node in nodes], np.int32, filled & sampled),
    ]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=_TOKENS), buffer, compression="zstd")
    return buffer.getvalue().to_pybytes()


def from_parquet(data: bytes) -> TokenTree:
    """Return the tree of a file, bit for bit. Raises ValueError (pyarrow.ArrowInvalid) when it is damaged."""
    # Without threads: Arrow's threads can outlive the interpreter and abort it
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    node = table["node"].to_numpy()
    bounds = [*np.flatnonzero(np.diff(node, prepend=-1)).tolist(), len(node)]
    token, logprob, version = (table[name].combine_chunks() for name in ("token", "logprob", "version"))
    tree = TokenTree()
    for start, end in pairwise(bounds):
        sampled = table["sampled"][start].as_py()
        rows = end - start if token[start].is_valid else 0
        sampled_rows = rows if sampled else 0
        tree.append(
            Node(
                parent=table["parent"][start].as_py(),
                tokens=token.slice(start, rows).to_numpy().copy(),
                sampled=sampled,
                logprobs=logprob.slice(start, sampled_rows).to_numpy().copy(),
                version=version.slice(start, sampled_rows).to_numpy().copy(),
                turn=table["turn"][start].as_py(),
            )
        )
    return tree
