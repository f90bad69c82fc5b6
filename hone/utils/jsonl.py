"""Append-only files of JSON lines: a kill loses at most the last line, never an earlier one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def append_json(path: Path, record: Any) -> int:
    """Append one record in a single write and return the offset of its line in bytes.

    Raises OSError, for example on a full disk.
    """
    line = json.dumps(record).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        written = file.write(line)
        if written != len(line):  # a full disk may take part of a line
            os.ftruncate(file.fileno(), file.tell() - written)
            raise OSError(28, os.strerror(28), str(path))
        return file.tell() - len(line)


def drop_partial_line(path: Path) -> None:
    """Truncate a last line without its newline, which a killed writer left. The file may be missing."""
    if not path.is_file():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1
    if complete < len(data):
        os.truncate(path, complete)


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, record) of every complete line; nothing when there is no file.

    Raises ValueError, naming the file and the line, when a complete line is not JSON.
    """
    if not path.is_file():
        return
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
        yield number, record
