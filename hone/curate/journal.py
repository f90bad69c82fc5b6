"""Results of a long run in a file, so that the same command continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError, first_few
from hone.utils.differences import differences
from hone.utils.jsonl import append_json, drop_partial_line


class Journal:
    """JSON values by key. The first line of the file describes the run; each later line is a key and a value.

    Values stay in the file; memory holds the place of each. Invariants: a value is on disk before `put`
    returns, and a kill loses at most the line being written; a file without a value belongs to no run.
    """

    def __init__(self, path: Path | None, run: Mapping[str, Any]) -> None:
        """Read the file at `path`, which the first value creates.

        Args:
            path: None keeps the values in memory only.
            run: the options and inputs that the values depend on, as JSON values.
        Raises:
            TaskError: another run wrote the file, or it cannot be read or written.
        """
        self.path = path
        self._run = dict(run)
        self._lines: dict[str, int | bytes] = {}  # key -> offset of its line; without a file, the line
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            drop_partial_line(path)
            written = self._read(path)
        except OSError as error:
            raise TaskError(f"cannot keep results in {path}: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise TaskError(f"{path} is not a journal ({error}): delete it to start again") from None
        if self._lines and (found := differences(written, self._run, path.name)):
            raise TaskError(
                f"{path} belongs to another run ({first_few(found, separator='; ')}): run that one again, "
                "delete the file, or write to another file"
            )

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Note the place of every value; return the description of the run, None for an empty file."""
        run: dict[str, Any] | None = None
        if not path.exists():
            return None
        with path.open("rb") as file:
            for line in iter(file.readline, b""):
                record = json.loads(line)
                if run is None:
                    if not isinstance(record, dict):
                        raise ValueError("its first line does not describe a run")
                    run = record
                else:
                    key, _ = record
                    self._lines[key] = file.tell() - len(line)
        return run

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: object) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """Return the value of a key, or None."""
        if key not in self._lines:
            return None
        line = self._lines[key]
        if isinstance(line, int):
            assert self.path is not None, "only values of a file have an offset"
            with self.path.open("rb") as file:
                file.seek(line)
                line = file.readline()
        return json.loads(line)[1]

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield every key and value in the order of first writing."""
        for key in list(self._lines):
            yield key, self.get(key)

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value; a later value of the same key replaces it."""
        if self.path is None:
            self._lines[key] = json.dumps([key, value]).encode()
            return
        if not self._lines:
            self.path.unlink(missing_ok=True)  # at most the description of a run without a value
            append_json(self.path, self._run)
        self._lines[key] = append_json(self.path, [key, value])

    def remove(self) -> None:
        """Delete the file, once the results are written elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
