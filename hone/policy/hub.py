"""Find the folder of a model: a local folder, or the snapshot of a model on the Hugging Face hub.

    "models/base"      -> models/base
    "Qwen/Qwen3-0.6B"  -> <HF_HOME>/hub/models--Qwen--Qwen3-0.6B/snapshots/<commit>, downloaded on first use

A folder takes precedence over a hub model of the same name, and the local cache over the network.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.policy.errors import PolicyError
from hone.policy.settings import ModelSettings
from hone.utils.files import write_file

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # owner/model
FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]  # weights, configuration, tokenizer
OTHER_FORMATS = ["*/*", "consolidated*"]  # the same weights again, such as onnx/ and original/
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
TIMEOUT_S = 10.0  # of the first request to the hub
PIN = "model.json"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedModel:
    """A model on this machine."""

    folder: Path
    commit: str | None = None  # of the hub's repository; None for a folder


def hub_name(path: Path) -> str | None:
    """Return the hub's name of a model that is not a folder, such as "Qwen/Qwen3-0.6B"; None otherwise."""
    return str(path) if not path.exists() and _NAME.fullmatch(str(path)) else None


def cached_model(model: ModelSettings, commit: str | None = None) -> LocatedModel | None:
    """Return a model that is on this machine: a folder, or a complete snapshot in the hub's cache.

    `commit` replaces `model.revision`. Uses no network, and does not check a folder.
    """
    if hub_name(model.path) is None:
        return LocatedModel(folder=model.path) if model.path.exists() else None
    folder = _cached_snapshot(str(model.path), commit or model.revision, FILES)
    if folder is None or not _is_complete(folder):
        return None
    return LocatedModel(folder=folder, commit=folder.name)


def _cached_snapshot(name: str, revision: str | None, files: list[str]) -> Path | None:
    """Return the snapshot in the hub's cache; None if there is none, or if it is known to lack `files`."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        return None
    with suppress(LocalEntryNotFoundError):
        found = snapshot_download(
            name,
            revision=revision,
            local_files_only=True,
            allow_patterns=files,
            ignore_patterns=OTHER_FORMATS,
        )
        return Path(found)
    return None


def find_model(model: ModelSettings, *, pin: Path | None = None) -> ModelSettings:
    """Return the settings with the folder of the model as `path`; download a hub model on first use.

    `pin` is the file in which a run records the commit of its hub model (see `pin_model`); the same model is
    then that commit for ever. Raises PolicyError if the model is neither a folder nor available.
    """
    located = locate_model(model, commit=None if pin is None else pinned_commit(model, pin))
    return model.model_copy(update={"path": located.folder, "revision": None})


def pin_model(model: ModelSettings, pin: Path) -> ModelSettings:
    """Return `find_model`, and record the commit of a hub model in `pin` unless it is recorded already."""
    commit = pinned_commit(model, pin)
    located = locate_model(model, commit=commit)
    if located.commit is not None and commit is None:
        record = {"path": str(model.path), "revision": model.revision, "commit": located.commit}
        write_file(pin, json.dumps(record, indent=1) + "\n")
    return model.model_copy(update={"path": located.folder, "revision": None})


def locate_model(model: ModelSettings, *, commit: str | None = None) -> LocatedModel:
    """Return the folder of a model; download a hub model on first use. Raises PolicyError."""
    name = hub_name(model.path)
    if name is None:
        if model.revision is not None:
            raise PolicyError(
                f"model.revision has no effect on the folder {model.path}: remove it, or set model.path to a "
                "model on the hub"
            )
        return LocatedModel(folder=model.path)  # the loader checks it
    found = cached_model(model, commit)
    if found is None:
        folder = _fetch(name, commit or model.revision, FILES)
        found = LocatedModel(folder=folder, commit=folder.name)
    return found


def _is_complete(folder: Path) -> bool:
    """Return whether a snapshot has its configuration, a tokenizer and every shard of the weights."""
    names = {path.name for path in folder.iterdir() if path.exists()}  # a link without its target is missing
    index = folder / "model.safetensors.index.json"
    shards = {"model.safetensors"}
    if index.name in names:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    return {CONFIG, *shards} <= names and any(name in names for name in TOKENIZERS)


def config_folder(model: ModelSettings) -> Path:
    """Return a folder with the model's config.json; of a hub model that is not cached only that is fetched.

    Raises PolicyError.
    """
    name = hub_name(model.path)
    if name is None:
        return model.path
    found = _cached_snapshot(name, model.revision, [CONFIG])
    return found if found and (found / CONFIG).is_file() else _fetch(name, model.revision, [CONFIG])


def _fetch(name: str, revision: str | None, files: list[str]) -> Path:
    """Return the snapshot of a hub model after a download of its `files` (patterns)."""
    try:
        import httpx
        from huggingface_hub import HfApi, constants, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise PolicyError(
            f"there is no folder {name}, and a model of the hub needs an extra: pip install 'hone-rl[train]'"
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    hub, at = constants.ENDPOINT, f" --revision {revision}" if revision else ""
    try:
        HfApi().model_info(name, revision=revision, timeout=TIMEOUT_S)  # fails at once if the hub is away
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=files, ignore_patterns=OTHER_FORMATS)
        )
    except GatedRepoError as error:
        raise PolicyError(
            f"{hub} gives the model {name} only to users who accepted its terms: accept them on {hub}/{name} "
            "and run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise PolicyError(
            f"there is neither a folder {name} nor such a model on {hub}: correct model.path, or run "
            "`hf auth login` if the model is private"
        ) from error
    except RevisionNotFoundError as error:
        raise PolicyError(f"{hub}/{name} has no revision {revision}: correct model.revision") from error
    except (LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise PolicyError(
            f"the model {name} is neither a folder nor in the cache {constants.HF_HUB_CACHE}, and {hub} "
            f"cannot be read ({_reason(error)}): run `hf download {name}{at}` where it can, and copy the "
            "cache or set model.path to the folder"
        ) from error


def pinned_commit(model: ModelSettings, pin: Path) -> str | None:
    """Return the commit of this model that the file `pin` records; None without a record."""
    if hub_name(model.path) is None or not pin.is_file():
        return None
    record: dict[str, Any] = json.loads(pin.read_text())
    same = (record["path"], record["revision"]) == (str(model.path), model.revision)
    return record["commit"] if same else None


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
