"""The files of a Harbor task's folder as texts, so that a task is one JSON value; and back.

A file is packed as "MODE ENCODING", a line end and its content: mode 644 or 755, encoding "utf-8", or
"base64" for what is not UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from hone.tasks.errors import TaskError
from hone.utils.text import digest

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
TEST = "tests/test.sh"
SOLUTION = "solution/solve.sh"
DOCKERFILE = "environment/Dockerfile"
RECORD = "hone.json"  # of an exported task: Hone's own record of it, and the digest of the other files
MAX_BYTES = 64 << 20  # of a folder


def pack(data: bytes, *, executable: bool) -> str:
    """Return a file as one text."""
    mode = "755" if executable else "644"
    try:
        return f"{mode} utf-8\n{data.decode()}"
    except UnicodeDecodeError:
        return f"{mode} base64\n{base64.b64encode(data).decode()}"


def unpack(text: str) -> tuple[bytes, bool]:
    """Return content and whether it is executable. Raises TaskError."""
    header, _, content = text.partition("\n")
    mode, _, encoding = header.partition(" ")
    if mode not in ("644", "755") or encoding not in ("utf-8", "base64"):
        raise TaskError(f"a file of its folder begins with {header[:40]!r}, not with a mode and an encoding")
    try:
        data = content.encode() if encoding == "utf-8" else base64.b64decode(content, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise TaskError(f"a file of its folder cannot be decoded: {error}") from None
    return data, mode == "755"


def read_folder(path: Path) -> dict[str, str]:
    """Return the packed files of a task's folder by path. Raises TaskError for what cannot be packed."""
    files: dict[str, str] = {}
    left = MAX_BYTES
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        info = file.lstat()
        if stat.S_ISDIR(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode):
            raise TaskError(f"its {name} is neither a file nor a directory")
        left -= info.st_size
        if left < 0:
            raise TaskError(f"its folder holds more than {MAX_BYTES >> 20} MiB")
        files[name] = pack(file.read_bytes(), executable=bool(info.st_mode & 0o100))
    return files


def write_folder(files: Mapping[str, str], path: Path) -> None:
    """Write packed files into a new directory. Raises TaskError for a name that leaves it, OSError."""
    path.mkdir(parents=True)
    for name, text in files.items():
        check_name(name)
        data, executable = unpack(text)
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if executable else 0o644)


def text_of(files: Mapping[str, str], name: str) -> str:
    """Return the text of a file. Raises TaskError where it is missing or not UTF-8."""
    if name not in files:
        raise TaskError(f"its folder has no {name}")
    try:
        return unpack(files[name])[0].decode()
    except UnicodeDecodeError:
        raise TaskError(f"its {name} is not UTF-8") from None


def below(files: Mapping[str, str], folder: str) -> Iterator[tuple[str, str]]:
    """Yield (path below `folder`, packed file) of every file there."""
    for name, text in files.items():
        if name.startswith(f"{folder}/"):
            yield name.removeprefix(f"{folder}/"), text


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of every file but Hone's record."""
    return digest({name: text for name, text in files.items() if name != RECORD})


def record_of(files: Mapping[str, str]) -> object | None:
    """Return Hone's own record of an exported task; else None. Raises TaskError for a changed folder."""
    if RECORD not in files:
        return None
    try:
        record = json.loads(text_of(files, RECORD))
        task, expected = record["task"], record["digest"]
    except (ValueError, KeyError, TypeError):
        raise TaskError(f"its {RECORD} is not a record of Hone: remove it to import the folder") from None
    if expected != digest_of(files):
        raise TaskError(
            f"its files changed after Hone exported it: remove {RECORD} to import the folder as it is"
        )
    return task


def check_name(name: str) -> None:
    """Raise TaskError unless `name` is a plain path below the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or not path.parts or "\0" in name:
        raise TaskError(f"its folder holds the name {name!r}, which leads out of it")
