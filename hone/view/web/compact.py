"""The token tree in few bytes: rounded numbers, and only those bytes that the text does not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hone.view.records import NodeTokens, TokenPage


def columns(page: TokenPage) -> dict[str, Any]:
    """Return what tokens.js draws; a column whose every value is the same stands once, as `[value]`."""
    return {
        "nodes": [_node(node) for node in page.nodes],
        "branches": page.branches,
    }


def _node(node: NodeTokens) -> dict[str, Any]:
    return {
        "node": node.node,
        "parent": node.parent,
        "turn": node.turn,
        "sampled": node.sampled,
        "branch": node.branch,
        "why": node.why,
        "ids": node.ids,
        "texts": node.texts,
        "bytes": _bytes(node),
        "logprob": _numbers(node.logprobs),
        "version": _once(node.versions),
        "trainer": _numbers(node.trainer_logprobs),
        "entropy": _numbers(node.entropies),
        "advantage": _numbers(node.advantages),
        "weight": _numbers(node.weights),
    }


def _bytes(node: NodeTokens) -> dict[int, str]:
    """Return the bytes, in hexadecimal, of the tokens whose text does not have exactly these in UTF-8."""
    if node.bytes_hex is None:
        return {}
    texts = node.texts or ("",) * len(node.ids)
    return {
        index: data
        for index, (text, data) in enumerate(zip(texts, node.bytes_hex, strict=True))
        if text.encode("utf-8", "surrogatepass").hex() != data
    }


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return _once([None if value is None else float(f"{value:.5g}") for value in values])


def _once(values: Sequence[Any]) -> list[Any]:
    first = values[0] if values else None
    same = bool(values) and all(value == first for value in values)
    return [first] if same else list(values)
