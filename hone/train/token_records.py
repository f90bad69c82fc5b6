"""What a training step knew of each trained token, kept for people: one Parquet file per step.

tokens/step-000007.parquet   one row per trained token of a rollout with a gradient:
    rollout_id, branch   the sample: index among the samples of its rollout, see `hone.train.samples`
    position             of the token in the sample
    advantage, weight    as the loss used them, after corrections
    logprob, entropy     of the trainer, from its first pass over the token in this step
    update               optimiser updates that the step had made before that pass; 0: the weights were fresh

Nothing reads them but views; a training goes on without them.
"""

# pyarrow publishes no types:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hone.train.errors import TrainError
from hone.types import Float32, Int32, Sample
from hone.utils.errors import writing
from hone.utils.files import replace_file

if TYPE_CHECKING:
    from hone.train.batches import TrainRow
    from hone.train.learner import PassReport

FOLDER = "tokens"
_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("branch", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("advantage", pa.float32(), nullable=False),
        pa.field("weight", pa.float32(), nullable=False),
        pa.field("logprob", pa.float32(), nullable=False),
        pa.field("entropy", pa.float32(), nullable=False),
        pa.field("update", pa.int32(), nullable=False),
    ]
)
_ENCODINGS = {  # small for ascending numbers, and for numbers of one size
    "position": "DELTA_BINARY_PACKED",
    "logprob": "BYTE_STREAM_SPLIT",
    "entropy": "BYTE_STREAM_SPLIT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """The rows of one rollout, in columns [T]; see the module."""

    branch: Int32
    position: Int32
    advantage: Float32
    weight: Float32
    logprob: Float32
    entropy: Float32
    update: Int32

    def of_branch(self, branch: int) -> TokenRows:
        """Return the rows of one sample of the rollout."""
        at = self.branch == branch
        return TokenRows(**{field.name: getattr(self, field.name)[at] for field in fields(self)})


class TokenRecorder:
    """Collects the rows of one training step."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        """`samples`: of the step, in the order of `hone.train.samples.build_samples`."""
        seen: Counter[str] = Counter()
        self._samples = samples  # kept, so that the ids of their arrays stay theirs
        self._branches: dict[int, int] = {}  # id of a sample's tokens, which every row of it shares -> branch
        for sample in samples:
            self._branches[id(sample.tokens)] = seen[sample.rollout_id]
            seen[sample.rollout_id] += 1
        self._parts: dict[int, tuple[str, dict[str, npt.NDArray[Any]]]] = {}

    def add(self, rows: Sequence[TrainRow], report: PassReport, *, updates: int) -> None:
        """Add the first pass over the tokens of rows, after `updates` of the step; ignore later passes."""
        if report.logprobs is None or report.entropies is None:
            return
        for row, logprobs, entropies in zip(rows, report.logprobs, report.entropies, strict=True):
            sample, at = row.sample, row.trained
            columns = {
                "branch": np.full(len(at), self._branches[id(sample.tokens)], np.int32),
                "position": at.astype(np.int32),
                "advantage": sample.advantage[at],
                "weight": sample.weight[at],
                "logprob": logprobs.astype(np.float32),
                "entropy": entropies.astype(np.float32),
                "update": np.full(len(at), updates, np.int32),
            }
            self._parts.setdefault(id(sample.tokens), (sample.rollout_id, columns))

    def write(self, run_dir: Path, step: int) -> None:
        """Write the file of a step, in place of an earlier one; no file where the learner told nothing.

        Raises TrainError when the disk is full or cannot be written.
        """
        path = token_file(run_dir, step)
        with writing(path, TrainError):
            if not self._parts:
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(exist_ok=True)
            with replace_file(path) as partial:
                pq.write_table(
                    self._table(),
                    partial,
                    compression="zstd",
                    use_dictionary=[name for name in _SCHEMA.names if name not in _ENCODINGS],
                    column_encoding=_ENCODINGS,
                )

    def _table(self) -> pa.Table:
        """Return all rows, ordered by rollout, branch and position."""
        parts = list(self._parts.values())
        names = sorted({name for name, _ in parts})
        numbers = {name: number for number, name in enumerate(names)}
        sizes = [len(columns["position"]) for _, columns in parts]
        rollout = np.repeat(np.array([numbers[name] for name, _ in parts], np.int32), sizes)
        columns = {
            field: np.concatenate([columns[field] for _, columns in parts]) for field in _SCHEMA.names[1:]
        }
        order = np.lexsort((columns["position"], columns["branch"], rollout))
        ids = pa.DictionaryArray.from_arrays(pa.array(rollout[order]), pa.array(names, pa.string()))
        return pa.table([ids, *(pa.array(each[order]) for each in columns.values())], schema=_SCHEMA)


def token_file(run_dir: Path, step: int) -> Path:
    """Return the file of a step's tokens."""
    return run_dir / FOLDER / f"step-{step:06d}.parquet"


def read_token_rows(run_dir: Path, step: int, rollout_id: str) -> TokenRows | None:
    """Return the rows of one rollout; None where the step recorded none of it."""
    path = token_file(run_dir, step)
    if not path.is_file():
        return None
    table = pq.ParquetFile(path).read(use_threads=False)
    found = table.filter(pc.equal(pc.cast(table["rollout_id"], pa.string()), rollout_id))
    if not found.num_rows:
        return None
    return TokenRows(**{field.name: found[field.name].to_numpy() for field in fields(TokenRows)})
