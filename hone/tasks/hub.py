"""Rows of Hugging Face data sets, read with the `datasets` library."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from hone.tasks.errors import TaskError
from hone.tasks.files import BATCH, read_rows
from hone.tasks.formats.rows import Row

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILE = re.compile(r".*\.(jsonl|json|parquet|gz)")


def read_source(source: str, split: str | None = None) -> Iterator[Row | TaskError]:
    """Return the rows of a file, of a folder of shards, or of a hub data set "owner/name".

    A local path takes precedence. A row that cannot be read is yielded as a TaskError.
    Raises TaskError when the source cannot be read.
    """
    if Path(source).exists() or not _NAME.fullmatch(source) or _FILE.fullmatch(source):
        return read_rows(Path(source), split)
    return read_hub(source, split)


def read_hub(name: str, split: str | None = None) -> Iterator[Row]:
    """Yield the rows of a hub data set, which the library caches on this machine.

    Args:
        split: name of one set; None if the data set has only one.
    Raises:
        TaskError: the data set or the set does not exist, the hub is unreachable, or `datasets` is missing.
    """
    try:
        import datasets
        from datasets import config
        from datasets.exceptions import DatasetNotFoundError, DatasetsError
    except ImportError:
        raise TaskError(
            f"to read {name} from the hub, install the `datasets` library (pip install 'hone[datasets]'); "
            f"there is no file of this name"
        ) from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    hub = config.HF_ENDPOINT
    try:
        data = datasets.load_dataset(name, split=split or _only_split(name))
        for batch in cast(Any, data).with_format("arrow").iter(BATCH):
            yield from batch.to_pylist()
    except TaskError:
        raise
    except DatasetNotFoundError:
        raise TaskError(
            f"{hub} has no data set {name}, or requires a login (hf auth login), and there is no "
            f"file of this name"
        ) from None
    except ConnectionError as error:
        raise TaskError(
            f"cannot reach {hub} for the data set {name} ({_line(error)}): give a file of it instead, "
            f".jsonl or .parquet"
        ) from None
    except (DatasetsError, OSError, ValueError) as error:
        raise TaskError(f"cannot read the data set {name}: {_line(error)}") from None


def _only_split(name: str) -> str:
    import datasets

    splits = datasets.get_dataset_split_names(name)
    if len(splits) != 1:
        raise TaskError(f"the data set {name} has several sets: choose one with --split: {', '.join(splits)}")
    return splits[0]


def _line(error: BaseException) -> str:
    """Return the message of the root cause in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__
