"""What a release says of itself: changelog, citation, release notes, issue templates."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hone

pytestmark = pytest.mark.slow  # starts processes
ROOT = Path(__file__).parent.parent
CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2026-02-01

### Added

- Trees.

## [0.1.0] - 2026-01-01

- Everything.
"""


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, subject: str) -> None:
    git(folder, "commit", "--allow-empty", "-q", "-m", subject)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def notes(repository: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py"), version]
    return subprocess.run([*command, "--repository", str(repository)], capture_output=True, text=True)


def test_notes_hold_the_changelog_and_the_commits_since_the_last_tag(repository: Path):
    commit(repository, "sandbox: before")
    git(repository, "tag", "v0.1.0")
    for subject in ("train: grow trees", "Loosen a bound", "sandbox: kill fork bombs", "train: log them"):
        commit(repository, subject)
    text = re.sub(r"\([0-9a-f]{7,}\)", "(ID)", notes(repository, "0.2.0").stdout)
    assert text == (
        "# Hone 0.2.0\n\n### Added\n\n- Trees.\n\n## Commits since v0.1.0\n\n"
        "- sandbox: kill fork bombs (ID)\n- train: grow trees (ID)\n- train: log them (ID)\n"
        "- other: Loosen a bound (ID)\n"
    )
    git(repository, "tag", "v0.2.0")
    commit(repository, "train: after the release")
    assert re.sub(r"\([0-9a-f]{7,}\)", "(ID)", notes(repository, "0.2.0").stdout) == text


def test_first_release_counts_its_commits(repository: Path):
    commit(repository, "all: begin")
    commit(repository, "all: go on")
    assert notes(repository, "0.1.0").stdout == (
        "# Hone 0.1.0\n\n- Everything.\n\nThe first release, of 2 commits.\n"
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.3.0", "CHANGELOG.md has no section [0.3.0] (it has Unreleased, 0.2.0, 0.1.0)"),
        ("Unreleased", "the section [Unreleased] of CHANGELOG.md is empty"),
    ],
)
def test_release_without_a_description_is_refused(repository: Path, version: str, said: str):
    commit(repository, "all: begin")
    done = notes(repository, version)
    assert done.returncode == 1
    assert said in done.stderr


def test_this_version_is_in_changelog_and_citation():
    assert f"## [{hone.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (hone.__version__, "Apache-2.0")


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_issue_template_has_what_a_form_needs(path: Path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert isinstance(form["blank_issues_enabled"], bool)
        return
    assert {"name", "description", "body"} <= form.keys()
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields)
    assert all(each["attributes"]["label"] for each in fields)
