"""Local git repositories, read without running their hooks, filters or configuration."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.utils import git
from hone.utils.text import as_url

# Overrides configuration of the repository that makes git run programs or write files.
_SAFE = (
    *("-c", "safe.directory=*"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.sshCommand=false"),
    *("-c", "core.autocrlf=false"),
    *("-c", "core.logAllRefUpdates=false"),
    *("-c", "uploadpack.allowAnySHA1InWant=true"),
    *("-c", "protocol.allow=never"),
    *("-c", "protocol.file.allow=always"),
)
_TIMEOUT_S = 600.0


def run_git(
    *arguments: str, stdin: bytes = b"", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> bytes:
    """Return the output of a git command. Raises TaskError with its last line.

    Args:
        env: variables besides `hone.utils.git.HOST`.
    """
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            input=stdin,
            capture_output=True,
            env={**git.HOST, **(env or {})},
            cwd=cwd,
            umask=0o022,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise TaskError("git is missing: install it (apt-get install git)") from None
    except subprocess.TimeoutExpired:
        raise TaskError(f"git {arguments[0]} was not done after {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise TaskError(said[-1].removeprefix("fatal: "))
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository or bundle, opened for reading."""

    path: Path
    directory: Path  # the git directory
    _unpacked: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)  # of a bundle

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Open the repository at `path`. Raises TaskError when there is none."""
        if path.is_file():
            unpacked = tempfile.TemporaryDirectory(prefix="hone-bundle-")
            target = Path(unpacked.name) / "bare.git"
            try:
                run_git("clone", "--quiet", "--mirror", str(path.resolve()), str(target))
            except TaskError as error:
                raise TaskError(f"{path} is not a readable git bundle: {error}") from None
            return cls(path=path, directory=target, _unpacked=unpacked)
        inner = path / ".git"
        if inner.is_file():  # a worktree or a submodule names its git directory
            inner = path / inner.read_text("utf-8", "replace").removeprefix("gitdir:").strip()
        directory = inner if inner.is_dir() else path
        if not (directory / "HEAD").is_file():
            if url := as_url(path):
                raise TaskError(f"{url} is a URL: run `git clone {url}`, and pass the folder that it makes")
            raise TaskError(f"{path} is not a git repository: give a repository folder or a bundle")
        return cls(path=path, directory=directory.resolve())

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Return the output of a git command. Raises TaskError with its last line."""
        try:
            return run_git(f"--git-dir={self.directory}", *arguments, stdin=stdin)
        except TaskError as error:
            raise TaskError(f"{self.path}: {error}") from None

    def commit(self, name: str) -> str:
        """Return the full id of a commit by branch, tag or abbreviated id. Raises TaskError."""
        try:
            found = run_git(
                f"--git-dir={self.directory}", "rev-parse", "--verify", "--quiet", "--end-of-options",
                f"{name}^{{commit}}",
            )  # fmt: skip
        except TaskError:
            raise TaskError(f"{self.path} has no commit {name}") from None
        return found.decode().strip()

    def files(self, commit: str) -> list[str]:
        """Return the paths of all files at a commit, symbolic links included, submodules excluded."""
        listed = self.git("ls-tree", "-r", "-z", self.commit(commit)).decode("utf-8", "surrogateescape")
        entries = [entry.split("\t", 1) for entry in listed.split("\0") if entry]
        return [path for about, path in entries if about.split()[1] == "blob"]

    def texts(self, commit: str, paths: Iterable[str]) -> dict[str, str]:
        """Return the files among `paths` that exist at a commit and are UTF-8 text, path -> text."""
        paths = [path for path in paths if "\n" not in path]
        names = "".join(f"{commit}:{path}\n" for path in paths).encode("utf-8", "surrogateescape")
        stream = self.git("cat-file", "--batch", stdin=names)
        found: dict[str, str] = {}
        for path, body in zip(paths, _objects(stream, b"blob"), strict=True):
            if body is not None:
                with suppress(UnicodeDecodeError):
                    found[path] = body.decode("utf-8")
        return found

    def texts_at(self, commits: Sequence[str], path: str) -> dict[str, str]:
        """Return commit -> the file `path` as text, "" where it has none, for the commits that exist.

        Args:
            commits: full ids, or names of branches and tags.
        """
        names = "".join(f"{commit}^{{commit}}\n{commit}:{path}\n" for commit in commits)
        stream = self.git("cat-file", "--batch", stdin=names.encode("utf-8", "surrogateescape"))
        objects = list(_objects(stream))
        found: dict[str, str] = {}
        for commit, exists, content in zip(commits, objects[::2], objects[1::2], strict=True):
            if exists is not None:
                found[commit] = (content or b"").decode("utf-8", "replace")
        return found

    def checkout(self, commit: str, target: Path) -> None:
        """Write the tree of a commit into the empty or absent directory `target`, without a git directory."""
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="hone-index-") as folder:
            clone_commit(self, commit, Path(folder) / "one")
            run_git("checkout-index", "--all", f"--prefix={target.resolve()}/", cwd=Path(folder) / "one")


def write_attributes(target: Path) -> None:
    """Make files in a repository's tree equal their blobs, whatever line ends its attributes ask for."""
    (target / ".git" / "info").mkdir(exist_ok=True)
    (target / ".git" / "info" / "attributes").write_text("* -text -eol -ident -filter\n")


def _objects(stream: bytes, kind: bytes = b"") -> Iterator[bytes | None]:
    """Yield the objects in the output of `git cat-file --batch`; None for a missing one, or another kind."""
    at = 0
    while at < len(stream):
        end = stream.index(b"\n", at)
        header = stream[at:end].rsplit(b" ", 2)
        at = end + 1
        if header[-1] == b"missing":
            yield None
            continue
        size = int(header[-1])
        body, at = stream[at : at + size], at + size + 1
        yield body if kind in (b"", header[-2]) else None


def clone_commit(repository: Repository, commit: str, target: Path) -> None:
    """Make `target` a repository with this one commit and an index, but without a working tree.

    The commit keeps its id; its parents are cut off as in a shallow clone. No other ref, remote, reflog,
    stash or alternate is copied.
    """
    full = repository.commit(commit)
    run_git("init", "--quiet", "--template=", "--initial-branch=main", str(target))
    write_attributes(target)
    run_git(
        *("-c", "fetch.fsckObjects=false", "-c", "fetch.unpackLimit=1", "-c", "gc.auto=0"),
        *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--depth=1"),
        *("--upload-pack", "git -c uploadpack.allowAnySHA1InWant=true -c safe.directory=* upload-pack"),
        f"file://{repository.directory}",
        full,
        cwd=target,
    )
    run_git("update-ref", "refs/heads/main", full, cwd=target)
    run_git("read-tree", "main", cwd=target)
