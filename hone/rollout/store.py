"""Rollouts on disk: one directory each, enough to read, grade or train on them again.

    traj.json       messages, step_debug, info, turns: what people and other tools read
    patch.diff      the patch, byte for byte
    meta.json       who ran what: task, group, outcome, timings
    verdict.json    the grader's finding; it names hidden tests, so do not publish it with the rest
    tokens.parquet  one row per token of the tree: node, parent, sampled, turn, token, logprob, version

A rollout of a training is called `<task>__g<group>__i<index>__<time_ns>`, a sample of an evaluation
`<task>__<time_ns>`. A directory is written beside its place and renamed, so it exists whole or not at all.
Nothing is flushed to the disk: kill -9 loses nothing, and what a power cut tears is found by `load`.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hone.outcomes import Outcome
from hone.rollout.errors import StoreError
from hone.rollout.tokens import from_parquet, to_parquet
from hone.types import TestStatus, Trajectory, Turn, Verdict

FORMAT = "hone-trajectory-1"
SHOWN = 2000  # characters of an output's head and tail in step_debug
_PARTIAL = ".partial-"
_NAME = re.compile(r".+__\d+")


class Store:
    """The `rollouts/` directory of a run. Methods block; call them in a thread from async code."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mutex = threading.Lock()
        self._last_ns = 0

    def save(self, trajectory: Trajectory, *, group: int, index: int) -> str:
        """Write a rollout of a training and return its directory's name.

        Raises StoreError when the disk is full or cannot be written; what was stored before stays whole.
        """
        meta = {"group_index": group, "index": index}
        return self._write(f"{_stem(trajectory)}__g{group}__i{index}", trajectory, meta)

    def save_sample(self, trajectory: Trajectory, *, index: int, meta: Mapping[str, Any]) -> str:
        """Write a sample of an evaluation, with `meta` in its meta.json; like `save` otherwise."""
        return self._write(_stem(trajectory), trajectory, {**meta, "group_index": 0, "index": index})

    def _write(self, stem: str, trajectory: Trajectory, meta: Mapping[str, Any]) -> str:
        name = f"{stem}__{self._stamp()}"
        partial = self.root / f"{_PARTIAL}{name}"
        try:
            partial.mkdir(parents=True)
            for file, content in _files(trajectory, meta).items():
                (partial / file).write_bytes(content)
            partial.rename(self.root / name)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise _explained(self.root, error) from error
        return name

    def _stamp(self) -> int:
        """Nanoseconds since 1970, never the same twice: samples of one task may end together."""
        with self._mutex:
            self._last_ns = max(time.time_ns(), self._last_ns + 1)
            return self._last_ns

    def load(self, name: str) -> Trajectory:
        """The trajectory that was saved under `name`, bit for bit. Raises StoreError."""
        return load(self.root / name)

    def names(self) -> list[str]:
        """The rollouts that `load` knows, in alphabetical order."""
        found = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(
            path.name for path in found if _NAME.fullmatch(path.name) and not path.name.startswith(_PARTIAL)
        )

    def sweep(self, known: Iterable[str]) -> int:
        """Remove what a dead process left: half-written rollouts and those that no ledger row names."""
        keep = set(known)
        left = [
            path
            for path in (self.root.iterdir() if self.root.is_dir() else ())
            if path.name.startswith(_PARTIAL) or (_NAME.fullmatch(path.name) and path.name not in keep)
        ]
        for path in left:
            shutil.rmtree(path)
        return len(left)


def load(directory: Path) -> Trajectory:
    """Read one rollout. Raises StoreError, which names the directory, when it is missing or damaged."""
    try:
        traj = json.loads((directory / "traj.json").read_bytes())
        meta = json.loads((directory / "meta.json").read_bytes())
        verdict = json.loads((directory / "verdict.json").read_bytes())
        patch = (directory / "patch.diff").read_bytes().decode("utf-8", "surrogatepass")
        tree = from_parquet((directory / "tokens.parquet").read_bytes())
        if traj["trajectory_format"] != FORMAT:
            raise StoreError(f"{directory}: format {traj['trajectory_format']!r} is not {FORMAT!r}")
        return Trajectory(
            task_id=meta["instance_id"],
            rollout_id=meta["rollout_id"],
            group_id=meta["group_id"],
            tree=tree,
            turns=tuple(Turn(**turn) for turn in traj["turns"]),
            messages=tuple(traj["messages"]),
            patch=patch,
            outcome=Outcome(meta["outcome"]),
            reward=meta["reward"],
            verdict=_verdict(verdict),
            error=meta["error"],
            timings=meta["timings"],
            turn_rewards={int(index): reward for index, reward in meta["turn_rewards"].items()},
            metadata=meta["sample_metadata"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{directory} is not a whole rollout: {type(error).__name__}: {error}") from error


def _stem(trajectory: Trajectory) -> str:
    return re.sub(r"[^\w.-]", "_", trajectory.task_id)[:150]


def _files(trajectory: Trajectory, more: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a rollout; `more` stands in meta.json beside what every rollout has."""
    metadata = dict(trajectory.metadata)
    meta = {
        **more,
        "instance_id": trajectory.task_id,
        "rollout_id": trajectory.rollout_id,
        "group_id": trajectory.group_id,
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
        "error": trajectory.error,
        "turn_rewards": {str(index): reward for index, reward in trajectory.turn_rewards.items()},
        "timings": dict(trajectory.timings),
        "sampling_params": metadata.get("sampling"),
        "sample_prompt": list(trajectory.messages[:2]),
        "sample_metadata": metadata,
    }
    info = {
        "instance_id": trajectory.task_id,
        "exit_status": trajectory.outcome.value,
        "error": trajectory.error,
        "steps": len(trajectory.turns),
        "patch_source": metadata.get("patch_source"),
        "reward": trajectory.reward,
        "eval_result": None if trajectory.verdict is None else {"resolved": trajectory.verdict.resolved},
        "group_index": more["group_index"],
        "index": more["index"],
    }
    traj = {
        "messages": list(trajectory.messages),
        "step_debug": _step_debug(trajectory),
        "info": info,
        "trajectory_format": FORMAT,
        "turns": [dataclasses.asdict(turn) for turn in trajectory.turns],
    }
    verdict = None if trajectory.verdict is None else dataclasses.asdict(trajectory.verdict)
    return {
        "traj.json": _json(traj),
        "patch.diff": trajectory.patch.encode("utf-8", "surrogatepass"),
        "meta.json": _json(meta),
        "verdict.json": _json(verdict),
        "tokens.parquet": to_parquet(trajectory.tree),
    }


def _step_debug(trajectory: Trajectory) -> list[dict[str, Any]]:
    """One entry per turn that ran a command; its times add up the lengths of the turns before it."""
    entries: list[dict[str, Any]] = []
    clock = float(trajectory.metadata.get("started_at", 0.0))
    for turn in trajectory.turns:
        start, clock = clock, clock + turn.seconds
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
                "end_ts": clock,
                "ok": turn.exit_code == 0,
            }
        )
    return entries


def _json(value: object) -> bytes:
    return json.dumps(value).encode("ascii")  # escapes keep lone surrogates, which UTF-8 cannot


def _verdict(fields: dict[str, Any] | None) -> Verdict | None:
    if fields is None:
        return None
    tests = {name: TestStatus(status) for name, status in fields["tests"].items()}
    others = {name: value for name, value in fields.items() if name != "tests"}
    return Verdict(tests=tests, **others)


def _explained(root: Path, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"the disk that holds {root} is full: free some space and run the same command again; what was "
            "written so far is whole"
        )
    return StoreError(f"cannot write below {root}: {os.strerror(error.errno or 0)}")
