"""Rows of files and hub data sets, and their conversion to tasks; unusable rows are refused and counted."""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from hone.tasks.bundles import to_absolute, to_relative
from hone.tasks.errors import TaskError, first_few
from hone.tasks.formats import Format, content_hash, detect
from hone.tasks.formats.harbor import is_source, read_folders
from hone.tasks.rows import Row, parse, plain
from hone.types import Task
from hone.utils.files import replace_file

BATCH = 128  # rows in memory at once; a row may have a megabyte
PARQUET = (".parquet", ".parquets")  # suffixes
_SHARD = re.compile(r"(?P<split>.+)-(?P<number>\d+)-of-(?P<count>\d+)")
_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8, which some editors write


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    row: int  # counted from 1
    id: str  # of the row, or empty
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}{f' ({self.id})' if self.id else ''}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import: every row is in `tasks`, in `refused`, or counted in `repeated`."""

    tasks: tuple[Task, ...]
    numbers: tuple[int, ...]  # the row of each task, counted from 1
    refused: tuple[Refusal, ...]
    repeated: int

    def refusals(self) -> str:
        """Return the first refusals and the number of the rest, for a message."""
        return first_few(self.refused, separator="; ")


def import_rows(rows: Iterable[Row | TaskError], format: Format | None = None) -> Imported:
    """Return the tasks of rows.

    A row equal to an earlier one is counted and skipped. A row is refused when an earlier one has its id with
    other content, or its content with another id.

    Args:
        format: None detects the format of each row by its columns.
    """
    return _collect(rows, format, duplicates=False)


def tasks_of(rows: Iterable[Row | TaskError], source: Path | str) -> Imported:
    """Return the tasks of rows from `source`. Raises TaskError when no row can be used."""
    imported = _collect(rows, None, duplicates=True)
    if not imported.tasks:
        raise TaskError(f"{source} holds no tasks" + (f": {imported.refusals()}" if imported.refused else ""))
    return imported


def read_rows(path: Path, split: str | None = None) -> Iterator[Row | TaskError]:
    """Yield the rows of a .jsonl, .json or .parquet file (JSON also as .gz), a .parquet folder, Harbor tasks.

    A name may also end in .parquets, as that of a published training set does.

    A row that cannot be read is yielded as a TaskError. Raises TaskError when the file cannot be read. The
    repository that a row of Hone's own format names relative to the file gets its absolute path.

    Args:
        split: of a folder with several sets, such as `test` of `test-00000-of-00001.parquet`.
    """
    folder = path if path.is_dir() else path.parent
    for row in _read_rows(path, split):
        yield to_absolute(row, folder) if isinstance(row, dict) else row


def _read_rows(path: Path, split: str | None) -> Iterator[Row | TaskError]:
    try:
        if split is None and is_source(path):
            yield from read_folders(path)
        elif path.is_dir():
            yield from _read_folder(path, split)
        elif split is not None:
            raise TaskError(f"{path} is a single file without sets: remove --split {split}")
        elif path.suffix in PARQUET:
            yield from _read_parquet(path)
        elif path.name.endswith((".json", ".json.gz")):
            yield from _read_json(path)
        else:
            yield from _read_jsonl(path)
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(
            f"cannot read rows from {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows atomically, as Parquet or JSONL by the suffix of the name; see `hone.tasks.bundles`.

    Raises TaskError where Parquet would change a row, since each of its columns has one type.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (to_relative(row, path.parent) for row in rows)
    with replace_file(path) as partial:
        if path.suffix in PARQUET:
            _write_parquet(list(rows), partial, path)
        else:
            with partial.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def write_lists(tasks: Iterable[Task], folder: Path) -> None:
    """Write `instance_ids.txt` and `docker_images.txt`, one entry per line, each image once."""
    tasks = list(tasks)
    folder.mkdir(parents=True, exist_ok=True)
    kind = "docker://"
    images = [task.environment.image for task in tasks if task.environment.image.startswith(kind)]
    lists = {
        "instance_ids.txt": [task.id for task in tasks],
        "docker_images.txt": [image.removeprefix(kind) for image in images],
    }
    for name, lines in lists.items():
        (folder / name).write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)), encoding="utf-8")


def _collect(rows: Iterable[Row | TaskError], format: Format | None, *, duplicates: bool) -> Imported:
    """Convert rows. `duplicates` says whether two ids may have the same content."""
    tasks: dict[str, Task] = {}
    numbers: dict[str, int] = {}  # id -> row
    contents: dict[str, str] = {}  # id -> content hash
    owners: dict[str, str] = {}  # content hash -> id
    refused: list[Refusal] = []
    repeated = 0
    for number, row in enumerate(rows, start=1):
        try:
            task = _task(row, format)
            content = content_hash(task)
            if contents.get(task.id, content) != content:
                raise TaskError(f"the id {task.id} was already used by another task")
            if not duplicates and owners.get(content, task.id) != task.id:
                raise TaskError(f"it is the same task as {owners[content]}")
        except TaskError as error:
            refused.append(Refusal(row=number, id=_id(row), reason=str(error)))
            continue
        repeated += task.id in tasks
        tasks.setdefault(task.id, task)
        numbers.setdefault(task.id, number)
        contents[task.id] = content
        owners.setdefault(content, task.id)
    return Imported(
        tasks=tuple(tasks.values()),
        numbers=tuple(numbers.values()),
        refused=tuple(refused),
        repeated=repeated,
    )


def _task(row: Row | TaskError, format: Format | None) -> Task:
    if isinstance(row, TaskError):
        raise row
    kept: Row = {}
    for name, value in row.items():
        try:
            kept[name] = plain(value)
        except TaskError as error:
            raise TaskError(f"`{name}`: {error}") from None
    task = (format or detect(kept)).read(kept)
    if task.id in ("", ".", "..") or "/" in task.id or not task.id.isprintable():
        raise TaskError(f"its id {task.id!r} cannot name a directory")
    return task


def _read_folder(path: Path, split: str | None) -> Iterator[Row | TaskError]:
    """Yield the rows of a folder; an unreadable shard is yielded as one TaskError."""
    for shard in _shards(path, split):
        try:
            yield from _read_parquet(shard)
        except TaskError as error:
            yield error


def _shards(path: Path, split: str | None) -> list[Path]:
    sets: dict[str, list[Path]] = {}
    counts: dict[str, int] = {}
    for shard in sorted(each for each in path.rglob("*") if each.suffix in PARQUET):
        match = _SHARD.fullmatch(shard.stem)
        name = match["split"] if match else shard.stem
        sets.setdefault(name if match or split is not None else "", []).append(shard)
        counts[name] = int(match["count"]) if match else 1
    if not sets:
        raise TaskError(f"cannot read rows from {path}: the folder has no .parquet file")
    if split is None and len(sets) > 1:
        raise TaskError(
            f"{path} holds several sets ({', '.join(filter(None, sets))}): take one with `hone tasks import "
            "--split`, or give its file"
        )
    chosen = next(iter(sets)) if split is None else split
    if chosen not in sets:
        raise TaskError(f"{path} holds no set {chosen!r}: {', '.join(sets)}")
    if chosen and len(sets[chosen]) != counts[chosen]:
        raise TaskError(f"{path} holds {len(sets[chosen])} of {counts[chosen]} files of the set {chosen}")
    return sets[chosen]


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_jsonl(path: Path) -> Iterator[Row | TaskError]:
    with _open(path) as file:
        try:
            for number, line in enumerate(file):
                if content := (line.removeprefix(_MARK) if number == 0 else line).strip():
                    yield _row(content)
        except (EOFError, zlib.error) as error:
            yield TaskError(f"the file is truncated, so the following rows are missing: {error}")


def _row(line: bytes) -> Row | TaskError:
    try:
        return _object(parse(line))
    except TaskError as error:
        return error


def _object(value: Any) -> Row | TaskError:
    if isinstance(value, dict):
        return value
    return TaskError(f"a row must be an object, got {type(value).__name__}")


def _read_json(path: Path) -> Iterator[Row | TaskError]:
    with _open(path) as file:
        content = file.read()
    try:
        rows = parse(content.removeprefix(_MARK))
    except TaskError as error:
        raise TaskError(f"cannot read rows from {path}: {error}") from None
    if not isinstance(rows, list):
        raise TaskError(f"cannot read rows from {path}: it does not contain a list")
    yield from map(_object, rows)


def _read_parquet(path: Path) -> Iterator[Row | TaskError]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH, use_threads=False):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read rows from {path}: {error}") from None


def _write_parquet(rows: list[Row], partial: Path, path: Path) -> None:
    """Write rows; a missing column becomes null, any other change is an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, Any] = {}
    for name in names:
        cells = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(cells)
            changed = columns[name].to_pylist() != cells
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            changed = True
        if changed:
            raise TaskError(
                f"cannot write {path}: the rows hold values of several types in `{name}`, which Parquet "
                f"cannot keep; export to a .jsonl file instead"
            )
    try:
        pq.write_table(pa.table(columns), partial)
    except pa.ArrowException as error:
        raise TaskError(f"cannot write {path}: {error}; export to a .jsonl file instead") from None


def _id(row: Row | TaskError) -> str:
    if isinstance(row, TaskError):
        return ""
    columns = ("instance_id", "id", "question_id", "task_id", "commit_hash", "name")
    return next((row[name] for name in columns if isinstance(row.get(name), str) and row[name]), "")


_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILE = re.compile(r".*\.(jsonl|json|parquets?|gz)")


def is_missing(source: str) -> bool:
    """Return whether `source` names a file or folder, not a hub data set, and does not exist."""
    return not Path(source).exists() and (not _NAME.fullmatch(source) or bool(_FILE.fullmatch(source)))


def read_source(source: str, split: str | None = None) -> Iterator[Row | TaskError]:
    """Return the rows of a file, of a folder of shards, or of a hub data set "owner/name".

    A local path takes precedence. A row that cannot be read is yielded as a TaskError.
    Raises TaskError when the source cannot be read.
    """
    if Path(source).exists() or is_missing(source):
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
            f"to read {name} from the hub, install the `datasets` library (pip install 'hone-rl[datasets]'); "
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
