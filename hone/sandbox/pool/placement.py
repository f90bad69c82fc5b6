"""Choice of a node for a sandbox, as a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MEMORY_FLOOR_MIB = 256  # a node with less free memory gets nothing
COLD_LOAD = 0.5  # a node without the image counts as this much fuller than it is
COLD_STARTS = 2  # starts at a time, over all nodes, of an image on nodes that do not have it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The facts of a node that placement uses."""

    url: str
    capacity: int
    used: int
    starting: int
    starting_image: int  # of the image in question
    start_gate: int  # starts at a time
    has_image: bool
    free_memory_mib: int


def choose(nodes: Iterable[NodeView], *, memory_mib: int) -> str | None:
    """Return the URL of the best node, or None when the request has to wait.

    A node is eligible below its capacity and its start gate. One that lacks the image gets one start of it at
    a time (which pulls it), and only COLD_STARTS nodes do so at once: the others of this image wait for them.
    Of the eligible ones, those with `memory_mib` free come first, then the least loaded.
    """
    views = list(nodes)
    cold_starts = sum(node.starting_image for node in views if not node.has_image)
    eligible = [node for node in views if _is_eligible(node, cold_starts)]
    best = min(eligible, key=lambda node: _rank(node, memory_mib), default=None)
    return best.url if best else None


def _is_eligible(node: NodeView, cold_starts: int) -> bool:
    if node.used >= node.capacity or node.starting >= node.start_gate:
        return False
    if node.free_memory_mib < MEMORY_FLOOR_MIB:
        return False
    return node.has_image or (not node.starting_image and cold_starts < COLD_STARTS)


def _rank(node: NodeView, memory_mib: int) -> tuple[bool, float, int]:
    load = node.used / node.capacity + (0.0 if node.has_image else COLD_LOAD)
    return node.free_memory_mib < memory_mib, load, -node.free_memory_mib
