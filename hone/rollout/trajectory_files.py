"""Convert a trajectory to the files of its directory and back; only this module knows their keys.

traj.json       messages, step_debug, info, turns: read by people and other tools
patch.diff      the patch, byte for byte
meta.json       task, group, outcome, timings, scores, calls, settings of the sampler
verdict.json    the grader's findings; it names hidden tests, so do not publish it with the rest
tokens.parquet  one row per token of the tree: node, parent, sampled, turn, token, logprob, version; for a
                mixture of experts routing, whose metadata `routing` hold its type and shape per token
"""

# pyarrow publishes no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from hone.outcomes import Outcome
from hone.types import Judgement, Node, Scores, TokenTree, Trajectory

FORMAT = "hone-trajectory-1"
_ROUTING = "routing"  # column, and key of the metadata
SHOWN = 2000  # characters of an output's head and tail in step_debug
Json = dict[str, Any]

_TRAJECTORY = TypeAdapter(Trajectory)
_META = ("rollout_id", "group_id", "outcome", "reward", "error", "turn_rewards", "timings")
_SAMPLER = ("agent", "engine", "sampling", "trainable")
_MORE = {  # key of sample_metadata -> field of a trajectory
    "seed": "seed",
    "started_at": "started_at",
    "enforced": "enforced_limits",
    "tools": "tools",
    "calls": "calls",
    "forks": "forks",
    "signals": "signals",
}
_SCORES = {"judgements": "prm", "progress": "progress", "final": "reward"}  # field -> key of sample_metadata

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


def encode(trajectory: Trajectory, position: Mapping[str, Any]) -> dict[str, bytes]:
    """Return file name -> content. `position` holds `group_index`, `index` and further keys for meta.json."""
    record = to_record(trajectory)
    traj = {
        "messages": record["messages"],
        "step_debug": _step_debug(trajectory),
        "info": _info(trajectory, position),
        "trajectory_format": FORMAT,
        "turns": record["turns"],
    }
    meta = {
        **position,
        "instance_id": trajectory.task_id,
        **{name: record[name] for name in _META},
        **_summary(trajectory),
        "sampling_params": record["sampler"]["sampling"] or None,
        "sample_prompt": record["messages"][:2],
        "sample_metadata": {
            **record["notes"],
            **record["sampler"],
            **{key: record[field] for key, field in _MORE.items()},
            **_scores_json(trajectory.scores),
        },
    }
    return {
        "traj.json": _dump(traj),
        "patch.diff": trajectory.patch.encode("utf-8", "surrogatepass"),
        "meta.json": _dump(meta),
        "verdict.json": _dump(record["verdict"]),
        "tokens.parquet": to_parquet(trajectory.tree),
    }


def _summary(trajectory: Trajectory) -> Json:
    """Return what a table of many rollouts shows, so that it need not read their other files."""
    verdict = trajectory.verdict
    return {
        "turns": len(trajectory.turns),
        "sampled_tokens": trajectory.tree.sampled_tokens or sum(c.sampled_tokens for c in trajectory.calls),
        "resolved": verdict is not None and verdict.resolved,
        "tampered": verdict is not None and verdict.tampered is not None,
    }


def decode_ending(read: Callable[[str], bytes]) -> tuple[Outcome, float | None]:
    """Return outcome and reward alone, without the tokens and messages."""
    meta = json.loads(read("meta.json"))
    return Outcome(meta["outcome"]), meta["reward"]


def decode(read: Callable[[str], bytes]) -> Trajectory:
    """Return the trajectory whose files `read(name)` returns, bit for bit as it was encoded.

    Raises ValueError, KeyError or TypeError when a file is damaged or of another format.
    """
    traj, meta, verdict = (json.loads(read(name)) for name in ("traj.json", "meta.json", "verdict.json"))
    if traj["trajectory_format"] != FORMAT:
        raise ValueError(f"format {traj['trajectory_format']!r} is not {FORMAT!r}")
    more: Json = meta["sample_metadata"]
    scores = {field: more.get(key) for field, key in _SCORES.items()}
    if scores["judgements"] is not None:
        scores["judgements"] = scores["judgements"]["step_details"]
    known = {*_SAMPLER, *_MORE, *_SCORES.values()}
    record: Json = {
        "task_id": meta["instance_id"],
        **{name: meta[name] for name in _META},
        "turns": traj["turns"],
        "messages": traj["messages"],
        "patch": read("patch.diff").decode("utf-8", "surrogatepass"),
        "verdict": verdict,
        "scores": scores,
        "sampler": {name: more[name] for name in _SAMPLER if more.get(name) is not None},
        **{field: more[key] for key, field in _MORE.items() if key in more},
        "notes": {name: value for name, value in more.items() if name not in known},
    }
    return from_record(record, from_parquet(read("tokens.parquet")))


def to_record(trajectory: Trajectory) -> Json:
    """Return every field of a trajectory but its tree, as `json.dumps` takes it."""
    return _TRAJECTORY.dump_python(trajectory, exclude={"tree"})


def from_record(record: Mapping[str, Any], tree: TokenTree) -> Trajectory:
    """Return the trajectory of a record and its tree. Raises ValueError when a field is missing or wrong."""
    return _TRAJECTORY.validate_python({**record, "tree": tree})


def turn_starts(trajectory: Trajectory) -> list[float]:
    """Return the Unix time in s at which each turn began: the lengths of the turns before it add up."""
    lengths = [turn.seconds for turn in trajectory.turns[:-1]]
    return list(accumulate(lengths, initial=trajectory.started_at or 0.0))[: len(trajectory.turns)]


def _info(trajectory: Trajectory, position: Mapping[str, Any]) -> Json:
    return {
        "instance_id": trajectory.task_id,
        "exit_status": trajectory.outcome.value,
        "error": trajectory.error,
        "steps": len(trajectory.turns),
        "patch_source": "git_diff" if trajectory.patch.strip() else None,
        "reward": trajectory.reward,
        "eval_result": None if trajectory.verdict is None else {"resolved": trajectory.verdict.resolved},
        "group_index": position["group_index"],
        "index": position["index"],
    }


def _step_debug(trajectory: Trajectory) -> list[Json]:
    """Return an entry per turn that ran a command."""
    entries: list[Json] = []
    for turn, start in zip(trajectory.turns, turn_starts(trajectory), strict=True):
        if turn.action is None:
            continue
        entries.append(
            {
                "step_idx": turn.index,
                "action": turn.action,
                "returncode": turn.exit_code,
                "output_len": len(turn.observation),
                "output_head": turn.observation[:SHOWN],
                "output_tail": turn.observation[SHOWN:][-SHOWN:],  # never overlaps the head
                "start_ts": start,
                "end_ts": start + turn.seconds,
                "ok": turn.exit_code == 0,
            }
        )
    return entries


def _scores_json(scores: Scores) -> Json:
    blocks: Json = {}
    if scores.judgements is not None:
        means = [judgement.score for judgement in scores.judgements]
        blocks["prm"] = {
            "enabled": True,
            "step_scores": means,
            "step_mean_score": sum(means) / len(means) if means else 0.0,
            "step_details": [_judgement_json(judgement) for judgement in scores.judgements],
        }
    if scores.progress is not None:
        blocks["progress"] = {"enabled": True, **asdict(scores.progress)}
    if scores.final is not None:
        blocks["reward"] = asdict(scores.final)
    return blocks


def _judgement_json(judgement: Judgement) -> Json:
    return {
        "status": judgement.status.value,
        "step_index": judgement.step_index,
        "scores": [vote.score for vote in judgement.votes],
        "valid_scores": judgement.valid_scores,
        "valid_vote_count": len(judgement.valid_scores),
        "mean_score": judgement.score,
        "votes": [asdict(vote) for vote in judgement.votes],
    }


def _dump(value: object) -> bytes:
    return json.dumps(value).encode("ascii")  # escapes keep lone surrogates, which UTF-8 cannot


def to_parquet(tree: TokenTree) -> bytes:
    """Return the tree as a Parquet file, one row per token; a node without tokens has one row. Takes 1 ms."""
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
    table = pa.table(columns, schema=_TOKENS)
    buffer = pa.BufferOutputStream()
    pq.write_table(_with_routing(table, nodes, rows), buffer, compression="zstd")
    return buffer.getvalue().to_pybytes()


def _with_routing(table: pa.Table, nodes: Sequence[Node], rows: npt.NDArray[np.int64]) -> pa.Table:
    """Add the routing of the tokens, null where there is none; `rows` counts those of each node."""
    known = [node.routing for node in nodes if node.routing is not None and len(node.routing)]
    if not known:
        return table
    dtype, shape = np.result_type(*known), known[0].shape[1:]
    filled = np.zeros((int(rows.sum()), *shape), dtype)
    valid = np.zeros(len(filled), np.bool_)
    for node, end in zip(nodes, np.cumsum(rows).tolist(), strict=True):
        if node.routing is not None and len(node.routing):
            filled[end - len(node.tokens) : end] = node.routing
            valid[end - len(node.tokens) : end] = True
    width = pa.binary(filled[0].nbytes)
    bits = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    column = pa.Array.from_buffers(width, len(filled), [bits, pa.py_buffer(filled.tobytes())])
    stored = json.dumps({"dtype": dtype.name, "shape": shape})
    return table.append_column(_ROUTING, column).replace_schema_metadata({_ROUTING: stored})


def _read_routing(table: pa.Table) -> npt.NDArray[Any]:
    """Return the routing of all rows of a table that has some."""
    stored: Json = json.loads(table.schema.metadata[_ROUTING.encode()])
    flat = np.frombuffer(table[_ROUTING].combine_chunks().buffers()[1], stored["dtype"])
    return flat.reshape(table.num_rows, *stored["shape"])


def from_parquet(data: bytes) -> TokenTree:
    """Return the tree of a file, bit for bit. Raises ValueError (pyarrow.ArrowInvalid) when it is damaged."""
    # Without threads: Arrow's threads can outlive the interpreter and abort it
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    node = table["node"].to_numpy()
    bounds = [*np.flatnonzero(np.diff(node, prepend=-1)).tolist(), len(node)]
    token, logprob, version = (table[name].combine_chunks() for name in ("token", "logprob", "version"))
    routing = _read_routing(table) if _ROUTING in table.column_names else None
    tree = TokenTree()
    for start, end in pairwise(bounds):
        sampled = table["sampled"][start].as_py()
        rows = end - start if token[start].is_valid else 0
        sampled_rows = rows if sampled else 0
        own = (
            None if routing is None or not rows or not table[_ROUTING][start].is_valid else routing[start:end]
        )
        tree.append(
            Node(
                parent=table["parent"][start].as_py(),
                tokens=token.slice(start, rows).to_numpy().copy(),
                sampled=sampled,
                logprobs=logprob.slice(start, sampled_rows).to_numpy().copy(),
                version=version.slice(start, sampled_rows).to_numpy().copy(),
                turn=table["turn"][start].as_py(),
                routing=None if own is None else own.copy(),
            )
        )
    return tree
