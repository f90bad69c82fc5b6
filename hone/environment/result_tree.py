"""The files of a sandbox as a git tree of this machine, made from a tar stream that nobody trusts; blocking.

Names and contents of a stream only ever become git objects: no file of it is written under its own name. Left
out are git's own files, Python's caches, devices and sockets, and links that lead out of the tree.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from hone.environment.environment import BrokenTree, PatchRefused
from hone.sandbox.trees import is_unsafe_symlink
from hone.tasks.errors import TaskError
from hone.tasks.repository import run_git
from hone.utils.git import identity

MAX_BYTES = 256 << 20  # of all files of a result
MAX_FILES = 100_000
_MAX_PATH = 4095
_CACHES = ("__pycache__", ".pytest_cache")
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding"
_IDENTITY = identity("Hone", "hone@localhost", date="1700000000 +0000")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """One file of a result that differs from the image's."""

    path: str  # below /
    kind: str  # "file", "program", "link" or "deleted"
    content: bytes  # of a link: where it leads


@contextmanager
def _borrowing(base: Path | None) -> Iterator[Path]:
    """Yield a new git directory that borrows the objects of another one."""
    with tempfile.TemporaryDirectory(prefix="hone-result-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder) / "git"
        make_directory(directory)
        if base is not None:
            (directory / "objects" / "info" / "alternates").write_text(f"{base.resolve() / 'objects'}\n")
        yield directory


def make_directory(directory: Path) -> None:
    """Make an empty bare git directory. Raises TaskError."""
    run_git("init", "-q", "--bare", "--template=", str(directory))
    (directory / "info").mkdir(exist_ok=True)
    (directory / "info" / "attributes").write_text(f"{_ATTRIBUTES}\n")


def commit_stream(archive: Path, directory: Path, roots: Sequence[str]) -> str:
    """Store what a tar file holds below the roots as a commit on the branch `main`; return its id.

    Raises BrokenTree for a stream that is damaged or too large: what made it may be the agent's.
    """
    with tempfile.TemporaryFile() as stream:
        try:
            with archive.open("rb") as source:
                _write_stream(_BoundedReader(source), stream, [root.strip("/") for root in roots])
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise BrokenTree(f"the archive of the agent's files cannot be read: {error}") from error
        stream.seek(0)
        data = stream.read()
    try:
        _git(directory, "fast-import", "--quiet", "--force", "--done", stdin=data)
        return _git(directory, "rev-parse", "refs/heads/main").decode().strip()
    except TaskError as error:
        raise BrokenTree(f"git cannot store the agent's files: {error}") from error


def diff_stream(archive: Path, base: Path, roots: Sequence[str], *, max_kib: int) -> str:
    """Return the patch from the commit `main` of a git directory to the files of a tar file; paths below /.

    The commit may hold files outside of the roots. Raises BrokenTree.
    """
    with _borrowing(base) as directory:
        now = commit_stream(archive, directory, roots)
        before = _git(base, "rev-parse", "refs/heads/main").decode().strip()
        paths = [root.strip("/") for root in roots]
        for attribute in ("!diff", "-diff"):  # the second: every file in binary form, which is ASCII
            (directory / "info" / "attributes").write_text(f"{_ATTRIBUTES} {attribute}\n")
            patch = _git(
                directory, "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames",
                "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
                before, now, "--", *paths, env={"GIT_LITERAL_PATHSPECS": "1"},
            )  # fmt: skip
            if len(patch) > max_kib << 10:
                raise BrokenTree(f"the patch is larger than {max_kib} KiB")
            try:
                return patch.decode("utf-8")
            except UnicodeDecodeError:
                continue
    raise BrokenTree("git gives a patch that is not UTF-8, also where every file is binary")


def changed_files(patch: str, base: Path) -> list[ChangedFile]:
    """Return the files that a patch changes, as they are after it. Raises PatchRefused."""
    if not patch:
        return []
    with _borrowing(base) as directory:
        before = _git(base, "rev-parse", "refs/heads/main").decode().strip()
        index = {"GIT_INDEX_FILE": str(directory / "index")}
        _git(directory, "read-tree", before, env=index)
        try:
            data = patch.encode("utf-8", "surrogateescape")
            _git(directory, "apply", "--cached", "--whitespace=nowarn", "-", stdin=data, env=index)
        except TaskError as error:
            raise PatchRefused(f"the patch does not apply: {error}") from None
        listed = _git(directory, "diff-index", "--cached", "-r", "-z", "--no-renames", before, env=index)
        return list(_read_changes(directory, listed))


def _read_changes(directory: Path, listed: bytes) -> Iterator[ChangedFile]:
    """Yield the files of `git diff-index -z`: records of modes and ids, each followed by a path."""
    fields = listed.split(b"\0")[:-1]
    kinds = {b"100644": "file", b"100755": "program", b"120000": "link"}
    records = list(zip(fields[::2], fields[1::2], strict=True))
    blobs = [record.split(b" ")[3] for record, _ in records if record.split(b" ")[1] in kinds]
    sizes = _git(
        directory, "cat-file", "--batch-check=%(objectsize)", stdin=b"".join(b + b"\n" for b in blobs)
    )
    if sum(map(int, sizes.split())) > MAX_BYTES:
        raise PatchRefused(f"the patch makes files of more than {MAX_BYTES >> 20} MiB")
    for record, path in records:
        _, mode, _, blob, _ = record.split(b" ")
        kind = kinds.get(mode, "deleted")
        content = b"" if kind == "deleted" else _git(directory, "cat-file", "blob", blob.decode())
        yield ChangedFile(path=path.decode("utf-8", "surrogateescape"), kind=kind, content=content)


def _git(directory: Path, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    return run_git(*arguments, stdin=stdin, env={**_IDENTITY, **(env or {}), "GIT_DIR": str(directory)})


# --- from tar to git's import format


class _BoundedReader(io.RawIOBase):
    """Raises EOFError at its end, where tarfile would go on block by block to skip a size of any length."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, size: int = -1) -> bytes:
        if not (data := self._source.read(size)):
            raise EOFError("unexpected end of data")
        return data


def _write_stream(source: _BoundedReader, stream: IO[bytes], roots: Collection[str]) -> None:
    marks: dict[str, int] = {}  # by the path of a file with content; other names of it refer to it
    lines: list[bytes] = []
    left = MAX_BYTES
    with tarfile.open(fileobj=source, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
        for number, member in enumerate(tar):
            if number >= MAX_FILES:
                raise BrokenTree(f"the agent's files are more than {MAX_FILES}")
            if member.size < 0:  # would raise the limit
                raise tarfile.ReadError("the size of a file is negative")
            path = _path_of(member.name, roots)
            if path is None:
                continue
            if member.isreg() and (content := tar.extractfile(member)) is not None:
                left -= member.size
                if left < 0:
                    raise BrokenTree(f"the agent's files hold more than {MAX_BYTES >> 20} MiB")
                marks[path] = len(marks) + 1
                stream.write(b"blob\nmark :%d\ndata %d\n" % (marks[path], member.size))
                while piece := content.read(_CHUNK):
                    stream.write(piece)
                stream.write(b"\n")
                lines.append(_entry(member.mode, marks[path], path))
            elif member.islnk() and (mark := marks.get(member.linkname.removeprefix("./"))):
                lines.append(_entry(member.mode, mark, path))
            elif member.issym() and stays_inside(path, member.linkname, roots):
                target = member.linkname.encode("utf-8", "surrogateescape")
                lines.append(b"M 120000 inline %s\ndata %d\n%s\n" % (_quoted(path), len(target), target))
    stream.write(b"commit refs/heads/main\ncommitter Hone <hone@localhost> 1700000000 +0000\ndata 0\n\n")
    stream.writelines(lines)
    stream.write(b"done\n")


def stays_inside(path: str, link: str, roots: Collection[str]) -> bool:
    """Return whether a link stays within the root that it is in; all paths below /, without a leading slash.

    One that leaves it may show the agent's program, or the verifier, what only the verifier has.
    """
    root = max((each for each in roots if path == each or path.startswith(f"{each}/")), key=len, default=None)
    return root is not None and not is_unsafe_symlink(posixpath.dirname(path[len(root) + 1 :]), link)


def _entry(mode: int, mark: int, path: str) -> bytes:
    return b"M %s :%d %s\n" % (b"100755" if mode & 0o100 else b"100644", mark, _quoted(path))


def _path_of(name: str, roots: Collection[str]) -> str | None:
    """Return the path of a member below /, or None for one that is no part of a result."""
    path = name.removeprefix("./").rstrip("/")
    parts = path.split("/")
    plain = path and len(path) <= _MAX_PATH and not any(part in ("", ".", "..") for part in parts)
    inside = any(path == root or path.startswith(f"{root}/") for root in roots)
    own = any(part.lower().startswith(".git") for part in parts)
    cached = any(part in _CACHES for part in parts) or path.endswith(".pyc")
    return path if plain and inside and not own and not cached else None


def _quoted(path: str) -> bytes:
    """Return a path in git's C-style quotes, with every unusual byte escaped."""
    raw = path.encode("utf-8", "surrogateescape")
    text = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:03o}" for b in raw)
    return f'"{text}"'.encode()
