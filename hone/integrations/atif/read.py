"""An ATIF document as a trajectory: one that Hone wrote, bit for bit, or one of any other program."""

from __future__ import annotations

from typing import Any

from hone.integrations.atif.export import unescape
from hone.integrations.atif.foreign import from_foreign
from hone.integrations.atif.nodes import of_metrics, of_rest
from hone.integrations.atif.schema import FORMAT, AtifError, Document, parse
from hone.rollout.trajectory_files import from_record
from hone.types import Node, TokenTree, Trajectory


def from_atif(data: Any, *, name: str = "trajectory") -> Trajectory:
    """Return the trajectory in an ATIF document, given as decoded JSON.

    A document that `to_atif` wrote gives the same trajectory. For any other, see `from_foreign`.

    Args:
        name: the task and rollout of a document that names neither session nor trajectory.

    Raises AtifError for an unknown schema version, and for a document that is damaged.
    """
    document = parse(data)
    written = (document.extra or {}).get("hone")
    if written is None:
        return from_foreign(document, name=name, schema=data["schema_version"])
    try:
        if written["format"] != FORMAT:
            raise ValueError(f"its format {written['format']!r} is not {FORMAT!r}")
        return from_record(unescape(written["trajectory"]), _tree(document, written["nodes"]))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise AtifError(
            f"`extra.hone` does not fit the rest of the document ({reason}): export the rollout again, or "
            "delete `extra.hone` to read it like a document of another program"
        ) from error


def _tree(document: Document, rest: list[dict[str, Any]]) -> TokenTree:
    nodes: dict[int, Node] = dict(map(of_rest, rest))
    for part in (document, *(document.subagent_trajectories or ())):
        for step in part.steps:
            if step.metrics is not None:
                nodes.update(of_metrics(step.metrics))
    return TokenTree([nodes[index] for index in range(len(nodes))])
