"""Real repositories made of source distributions: each release of a package is one commit.

The package index is asked through uv, which knows where it is. Distributions and repositories are kept in
$XDG_CACHE_HOME/hone/packages, outside of this repository; nothing of them is committed to it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.tasks.python.tool import run_uv

EDITION = "2"  # of how commits are made; another value rebuilds all repositories
FIRST_DATE = 1_600_000_000  # seconds since 1970; releases are a day apart, so that commits never change
_DOWNLOAD_S = 60.0
_CHANGELOG = re.compile(r"(changes?|changelog|history|news|versions)(\.(rst|md|txt))?", re.IGNORECASE)
_LINKS = re.compile(
    r"\s*[\[(]*:(?:issue|pr|user)[^:]*:`[^`]*`[\])]*|\s*\((?:[\w ,]*#\d+[^)]*|by [^)]*)\)", re.IGNORECASE
)
_ENTRY = re.compile(r"^( *)[-*+] +", re.MULTILINE)
_WHO = {"NAME": "Hone", "EMAIL": "hone@localhost"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A small pure-Python package whose source distributions hold their tests."""

    name: str
    versions: tuple[str, ...]  # consecutive releases, oldest first


# Chosen by trying: the suites take seconds, and many of the releases fix bugs that they have tests for.
PACKAGES: tuple[Package, ...] = (
    Package(
        name="tomlkit",
        versions=(
            *("0.11.6", "0.11.7", "0.11.8", "0.12.0", "0.12.1", "0.12.2", "0.12.3", "0.12.4", "0.12.5"),
            *("0.13.0", "0.13.1", "0.13.2", "0.13.3"),
        ),
    ),
    Package(
        name="sqlparse",
        versions=("0.4.0", "0.4.1", "0.4.2", "0.4.3", "0.4.4", "0.5.0", "0.5.1", "0.5.2"),
    ),
    Package(
        name="marshmallow",
        versions=("3.19.0", "3.20.0", "3.20.1", "3.20.2", "3.21.0", "3.21.1", "3.21.2", "3.21.3", "3.22.0"),
    ),
    Package(
        name="cachetools",
        versions=("5.3.1", "5.3.2", "5.3.3", "5.4.0", "5.5.0", "5.5.1", "5.5.2"),
    ),
    Package(
        name="click",
        versions=("8.1.2", "8.1.3", "8.1.4", "8.1.5", "8.1.6", "8.1.7", "8.1.8"),
    ),
    Package(name="mistune", versions=("3.1.0", "3.1.1", "3.1.2", "3.1.3", "3.1.4")),
    Package(name="jinja2", versions=("3.1.2", "3.1.3", "3.1.4")),
    Package(name="itsdangerous", versions=("2.1.0", "2.1.1", "2.1.2", "2.2.0")),
)


def cache_folder() -> Path:
    """Where distributions and repositories are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hone" / "packages"


def package_repository(name: str, versions: Sequence[str], folder: Path | None = None) -> Path:
    """A git repository whose branch `main` has one commit per version, in their order; made on first use.

    A commit's message is what the change log of its release says of it, else "Release X". Dates are fixed, so
    that the same distributions make the same commits.

    Args:
        folder: to keep it in; default: `cache_folder()`.
    Raises:
        TaskError: a version is not on the index.
        ValueError: it has no source distribution, or another than the index says.
    """
    folder = folder or cache_folder()
    target = (
        folder
        / "repositories"
        / f"{name}-{hashlib.sha256(' '.join([EDITION, *versions]).encode()).hexdigest()[:10]}"
        / name
    )
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hone-package-", dir=folder) as scratch:
        repository = Path(scratch) / name
        _git(repository, "init", "--quiet", "--template=", "--initial-branch=main", str(repository))
        for number, version in enumerate(versions):
            tree = unpack(source_distribution(name, version, folder), Path(scratch) / version)
            _commit(repository, tree, _message(tree, version), FIRST_DATE + 86400 * number)
        repository.rename(target)
    return target


def latest_repository(name: str, version: str, folder: Path | None = None) -> Path:
    """A git repository with one commit: a single release."""
    return package_repository(name, [version], folder)


def source_distribution(name: str, version: str, folder: Path | None = None) -> Path:
    """The archive of a release, downloaded on first use, with the hash that the index gives.

    Raises as `package_repository`.
    """
    kept = (folder or cache_folder()) / "distributions" / f"{name}-{version}.tar.gz"
    if kept.is_file():
        return kept
    url, expected = _index_record(name, version)
    with urllib.request.urlopen(url, timeout=_DOWNLOAD_S) as answer:
        body = answer.read()
    found = hashlib.sha256(body).hexdigest()
    if found != expected:
        raise ValueError(f"{name} {version}: the archive has the hash {found}, not the one of the index")
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_name(f".{kept.name}.{os.getpid()}")
    beside.write_bytes(body)
    beside.replace(kept)
    return kept


def _index_record(name: str, version: str) -> tuple[str, str]:
    """Where a release's source distribution lies, and its SHA-256; uv asks the index, nothing is built."""
    with tempfile.TemporaryDirectory(prefix="hone-index-") as scratch:
        wanted, found = Path(scratch) / "wanted.in", Path(scratch) / "pylock.toml"
        wanted.write_text(f"{name}=={version}\n")
        run_uv(
            [
                "pip",
                "compile",
                "--quiet",
                "--no-deps",
                "--no-header",
                "--output-file",
                str(found),
                str(wanted),
            ],
            failure=f"cannot find {name} {version}",
        )
        packages = tomllib.loads(found.read_text())["packages"]
    record = packages[0].get("sdist", {})
    url = record.get("url", "")
    if not url.startswith(("https://", "http://")) or not urllib.parse.urlparse(url).path.endswith(".tar.gz"):
        raise ValueError(f"{name} {version} has no source distribution as .tar.gz to download")
    return url, record["hashes"]["sha256"]


def unpack(archive: Path, target: Path) -> Path:
    """The tree of a distribution, without what its build wrote."""
    with tarfile.open(archive) as members:
        members.extractall(target, filter="data")
    (tree,) = target.iterdir()
    for info in tree.rglob("*.egg-info"):
        shutil.rmtree(info)
    return tree


def _commit(repository: Path, tree: Path, message: str, date: int) -> None:
    for old in repository.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for new in tree.iterdir():
        new.rename(repository / new.name)
    _git(repository, "add", "--all", "--force")
    _git(
        repository, "commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--message", message, date=date
    )


def _message(tree: Path, version: str) -> str:
    """One line per entry of the change log's section, the first being the title."""
    names = sorted(
        p for p in [*tree.iterdir(), *tree.glob("docs/*"), *tree.glob("docs/source/*")] if p.is_file()
    )
    for path in names:
        if _CHANGELOG.fullmatch(path.name):
            found = list(_entries(_section(path.read_text("utf-8", "replace"), version)))
            if found:
                return "\n".join(f"- {entry}" for entry in found)
    return f"Release {version}"


def _section(text: str, version: str) -> str:
    """What stands between the title of a version and the next title of one."""
    title = re.compile(
        r"^[\s#*=\[(]*(?:version|release|v)?\s*\[?v?(\d+(?:\.\d+)+)\b(?!.*[.:]\s+\w).*$", re.MULTILINE | re.I
    )
    titles = list(title.finditer(text))
    for number, found in enumerate(titles):
        if found[1] == version:
            end = titles[number + 1].start() if number + 1 < len(titles) else len(text)
            return text[found.end() : end]
    return ""


def _entries(section: str) -> Iterator[str]:
    """The items of the outermost lists, each as one line."""
    marks = list(_ENTRY.finditer(section))
    if not marks:
        return
    outer = min(len(mark[1]) for mark in marks)
    starts = [mark for mark in marks if len(mark[1]) == outer]
    for mark, following in zip(starts, [*starts[1:], None], strict=True):
        text = section[mark.end() : following.start() if following else len(section)]
        paragraph = re.split(r"\n\s*\n", text, maxsplit=1)[0]
        yield _LINKS.sub("", " ".join(paragraph.split())).strip(" :")


def _git(repository: Path, *arguments: str, date: int = FIRST_DATE) -> None:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_{what}": value for what, value in _WHO.items()}
        env[f"GIT_{who}_DATE"] = f"{date} +0000"
    inside = [] if arguments[0] == "init" else ["-C", str(repository)]
    subprocess.run(["git", *inside, *arguments], env=env, check=True, capture_output=True)
