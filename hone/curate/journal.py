"""Results of a long run in a file, so that the same command continues where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError
from hone.utils.jsonl import append_json, drop_partial_line, read_json_lines


class Journal:
    """JSON values by key. The first line of the file describes the run; each later line is a key and a value.

    Invariant: a value is on disk before `put` returns, and a kill loses at most the line being written.
    """

    def __init__(self, path: Path | None, run: Mapping[str, Any]) -> None:
        """Read the file at `path`, or create it.

        Args:
            path: None keeps the values in memory only.
            run: the options and inputs that the values depend on, as JSON values.
        Raises:
            TaskError: another run wrote the file, or it cannot be read or written.
        """
        self._path = path
        self._values: dict[str, Any] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            drop_partial_line(path)
            records = [record for _, record in read_json_lines(path)]
            if not records:
                append_json(path, dict(run))
            self._values = dict(records[1:])
        except OSError as error:
            raise TaskError(f"cannot keep results in {path}: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise TaskError(f"{path} is not a journal ({error}): delete it to start again") from None
        if records and records[0] != dict(run):
            raise TaskError(
                f"{path} belongs to a run with other options or of another commit: delete it, or write to "
                "another file"
            )

    def get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        return self._values.get(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield every key and value in the order of first writing."""
        yield from self._values.items()

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value; a later value of the same key replaces it."""
        self._values[key] = value
        if self._path is not None:
            append_json(self._path, [key, value])

    def remove(self) -> None:
        """Delete the file, once the results are written elsewhere."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
