"""Print the notes of a release: its section of CHANGELOG.md, then its commits by room.

    python scripts/release_notes.py VERSION [--repository DIR]
    python scripts/release_notes.py 0.2.0 > notes.md

The commits are those from the previous tag `v*` to the tag `vVERSION`, or to HEAD as long as that tag does
not exist. Without a previous tag, only their number is printed. A commit without a room (`room: summary`) is
listed under "other".
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def release_notes(repository: Path, version: str) -> str:
    """Return the notes in Markdown. Raises ValueError when CHANGELOG.md has no text for the version."""
    section = changelog_section((repository / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    end = f"v{version}" if _git(repository, "tag", "--list", f"v{version}") else "HEAD"
    start = previous_tag(repository, end)
    parts = [f"# Hone {version}", section]
    if start is None:
        number = _git(repository, "rev-list", "--count", "--no-merges", end)
        parts.append(f"The first release, of {number} commits.")
    else:
        commits = _git(repository, "log", "--no-merges", "--reverse", "--format=%h %s", f"{start}..{end}")
        parts += [f"## Commits since {start}", commits_by_room(commits.splitlines())]
    return "\n\n".join(parts) + "\n"


def changelog_section(text: str, version: str) -> str:
    """Return the text below the heading `## [version]`, without the heading. Raises ValueError."""
    sections = re.split(r"^## \[([^\]]+)\].*$", text, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    if version not in found:
        known = ", ".join(found) or "none"
        raise ValueError(f"CHANGELOG.md has no section [{version}] (it has {known}): rename [Unreleased]")
    if not found[version].strip():
        raise ValueError(f"the section [{version}] of CHANGELOG.md is empty: describe the release there")
    return found[version].strip()


def previous_tag(repository: Path, end: str) -> str | None:
    """Return the last tag `v*` before `end`; None if there is none."""
    own = ["--exclude", end] if end != "HEAD" else []
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", *own, end]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def commits_by_room(lines: list[str]) -> str:
    """Return a Markdown list of commits, "abc1234 room: summary" each, sorted by room."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        commit, _, subject = line.partition(" ")
        match = re.fullmatch(r"([a-z][\w, -]{0,30}): (.+)", subject)
        room, summary = (match[1], match[2]) if match else ("other", subject)
        rooms[room].append(f"- {room}: {summary} ({commit})")
    return "\n".join(
        each for room in sorted(rooms, key=lambda room: (room == "other", room)) for each in rooms[room]
    )


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version")
    parser.add_argument("--repository", type=Path, default=ROOT)
    arguments = parser.parse_args()
    try:
        print(release_notes(arguments.repository, arguments.version), end="")
    except ValueError as error:
        print(f"release_notes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
