"""Training state in a folder, by torch.distributed.checkpoint (DCP): any number of ranks to any other.

    state/  .metadata              shapes of all tensors and the place of each shard
            __RANK_0.distcp        the shards that rank RANK wrote
            random-RANK.pt         random states of rank RANK

Tensors are stored by name: `weights/NAME` (float32 masters, or the trained parameters themselves) and
`optimizer/KEY/NAME`, where KEY is torch's (`exp_avg`, `momentum_buffer`, ...). Shards are DTensors; plain
tensors are equal on all ranks and written once. Settings of the optimisers are not stored: the recipe has
them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import pickle
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from hone.train.errors import CheckpointError

# DCP warns that it saves one process, which is what the learner of one process wants
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


class PendingSave:
    """A state that a thread writes; call it to wait until the files are complete."""

    def __init__(self, folder: Path, write: Callable[[], None]) -> None:
        self._folder = folder
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(write,), name="state", daemon=True)
        self._thread.start()

    def __call__(self) -> None:
        """Wait; raise CheckpointError if the files cannot be written."""
        self._thread.join()
        if self._error is not None:
            raise CheckpointError(f"{self._folder} cannot be written: {reason(self._error)}") from self._error

    @property
    def is_done(self) -> bool:
        """Whether the write has ended, well or not, so that a call does not block."""
        return not self._thread.is_alive()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            self._error = error


def begin_save(
    folder: Path,
    weights: Mapping[str, Tensor],
    optimizers: Sequence[Optimizer],
    *,
    group: dist.ProcessGroup | None = None,
) -> PendingSave:
    """Copy the state to host memory, begin to write it into `folder` in a thread, and return.

    After the return the state may change. The copy takes 12 bytes per trained parameter with AdamW and 8
    with Muon, divided by the number of ranks that shard them; it lives until the files are complete. If a
    rank cannot write its shards, the result raises CheckpointError on every rank.

    Args:
        weights: by name, what the optimisers update; names and global shapes are equal on all ranks.
        group: a gloo group of all ranks that serves nothing else, so that collectives of a write never mix
            with those of training; None: this process holds the whole state. All ranks must call.
    """
    # not DCP's stager, which copies whole storages: FSDP2 frees the storages of some views
    tensors: dict[str, Any] = {n: t.to("cpu", copy=True) for n, t in _tensors(weights, optimizers).items()}
    states = random_states(next(iter(weights.values())).device)
    rank = 0 if group is None else dist.get_rank(group)

    def write() -> None:
        try:
            writer = FileSystemWriter(folder)  # makes the folder and fsyncs what it writes
            dcp_save(tensors, storage_writer=writer, process_group=group, no_dist=group is None)
            torch.save(states, folder / f"random-{rank}.pt")  # after the collectives: an error blocks no rank
        finally:
            tensors.clear()  # the copy is large, and a caller may keep the PendingSave

    return PendingSave(folder, write)


def load(
    folder: Path,
    weights: Mapping[str, Tensor],
    optimizers: Sequence[Optimizer],
    *,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Load what `begin_save` wrote, in place, with this or another number of ranks; all ranks must call.

    With the number of ranks that wrote it, training continues bit for bit. Raises CheckpointError when a
    file is missing or damaged or the state belongs to another model.
    """
    try:
        targets = _prepared(folder, weights, optimizers, group)
        dcp_load(dict(targets), storage_reader=_Reader(folder), process_group=group, no_dist=group is None)
        _restore_random_states(folder, 0 if group is None else dist.get_rank(group))
    except CheckpointError:
        raise
    except (Exception, CheckpointException) as error:  # damaged files raise errors of many kinds
        raise CheckpointError(f"{folder} cannot be loaded: {reason(error)}") from error


def _prepared(
    folder: Path,
    weights: Mapping[str, Tensor],
    optimizers: Sequence[Optimizer],
    group: dist.ProcessGroup | None,
) -> dict[str, Tensor]:
    """Return the tensors to load into, by their stored names; an error on one rank is an error on all."""
    targets: dict[str, Tensor] = {}
    error: Exception | None = None
    try:
        saved = _Reader(folder).read_metadata()
        _require_files(folder, saved.storage_data)
        targets = _targets(folder, saved.state_dict_metadata, weights, optimizers)
    except Exception as found:
        error = found
    if group is not None:
        refusals: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(refusals, None if error is None else str(error), group=group)
        rank = next((rank for rank, refusal in enumerate(refusals) if refusal), None)
        if error is None and rank is not None:
            raise CheckpointError(f"rank {rank}: {refusals[rank]}")
    if error is not None:
        raise error
    return targets


def _require_files(folder: Path, stored: Mapping[Any, Any]) -> None:
    """Raise CheckpointError unless the files hold all the bytes that were written."""
    ends: Counter[str] = Counter()
    for part in stored.values():
        ends[part.relative_path] = max(ends[part.relative_path], part.offset + part.length)
    for name, end in sorted(ends.items()):
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size is None or size < end:
            found = "is missing" if size is None else f"has {size} bytes of at least {end}"
            raise CheckpointError(
                f"{folder} cannot be loaded: {name} {found}; restore that file, or delete the checkpoint"
            )


def _tensors(weights: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return all tensors of the state by their stored names."""
    tensors = {f"weights/{name}": tensor.detach() for name, tensor in weights.items()}
    for name, tensor in weights.items():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(tensor, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value.detach()
    return tensors


def _targets(
    folder: Path, saved: Mapping[str, Any], weights: Mapping[str, Tensor], optimizers: Sequence[Optimizer]
) -> dict[str, Tensor]:
    """Return the tensors to load into, by their stored names, after making the optimisers' own.

    An optimiser has no state of a parameter before its first update.
    """
    owners = {id(p): o for o in optimizers for group in o.param_groups for p in group["params"]}
    targets = {f"weights/{name}": tensor.detach() for name, tensor in weights.items()}
    for optimizer in optimizers:
        optimizer.state.clear()
    for stored, meta in saved.items():
        kind, _, rest = stored.partition("/")
        if kind != "optimizer":
            continue
        key, _, name = rest.partition("/")
        parameter = weights.get(name)
        if parameter is None or id(parameter) not in owners:
            raise CheckpointError(f"{folder} holds {stored}, which this run does not train: {_ADVICE}")
        value = _empty(meta, parameter)
        owners[id(parameter)].state[parameter][key] = value
        targets[stored] = value
    _require_same(folder, saved, targets)
    return targets


def _empty(meta: TensorStorageMetadata, parameter: Tensor) -> Tensor:
    """Return a tensor for a stored value: sharded like `parameter`, or a scalar such as AdamW's step."""
    if meta.size == parameter.shape:
        return torch.zeros_like(parameter, dtype=meta.properties.dtype, requires_grad=False)
    return torch.zeros(meta.size, dtype=meta.properties.dtype, device=parameter.device)


def _require_same(folder: Path, saved: Mapping[str, Any], targets: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless names and shapes are those of the stored tensors."""
    for name in sorted(saved.keys() ^ targets.keys()):
        where = "which this run does not train" if name in saved else "which is missing there"
        raise CheckpointError(f"{folder} does not fit this run's model: {name}, {where}; {_ADVICE}")
    for name, target in targets.items():
        if tuple(saved[name].size) != tuple(target.shape):
            raise CheckpointError(
                f"{folder} does not fit this run's model: {name} has the shape {tuple(saved[name].size)} "
                f"there and {tuple(target.shape)} here; {_ADVICE}"
            )


_ADVICE = "restore the settings that the checkpoint was written with, or choose another run directory"


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of python, numpy, torch, and `device` if it has its own."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": (kind, [int(k) for k in keys], position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the generators to `random_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"])
    if "device" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["device"])


def _restore_random_states(folder: Path, rank: int) -> None:
    """Restore the random states of `rank`; a rank that did not exist gets new ones, which the saved imply."""
    own = folder / f"random-{rank}.pt"
    if own.is_file():
        set_random_states(torch.load(own, map_location="cpu", weights_only=True))
        return
    set_random_states(torch.load(folder / "random-0.pt", map_location="cpu", weights_only=True))
    seed = random.getrandbits(30) + rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class _Reader(FileSystemReader):
    """Reads tensors only: a prepared `.metadata` cannot run code, as it could with pickle."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: Metadata = _Unpickler(file).load()
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


_DTYPES = {str(t).removeprefix("torch.") for t in vars(torch).values() if isinstance(t, torch.dtype)}
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "ChunkStorageMetadata"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *_DTYPES},
    "pathlib": {"PosixPath"},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f".metadata contains {module}.{name}, which no checkpoint does")
        return super().find_class(module, name)


def reason(error: BaseException) -> str:
    """Return the cause of an error in one line; that of the first rank for an error of several."""
    if isinstance(error, CheckpointError) and error.__cause__ is not None:
        return reason(error.__cause__)
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
        return f"rank {rank}: {reason(cause)}" if len(error.failures) > 1 or rank else reason(cause)
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
