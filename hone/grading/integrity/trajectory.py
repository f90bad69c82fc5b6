"""Signals that an agent searched for the fix outside the repository; for reports, not a boundary."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hone.environment.apply import BASE_GIT
from hone.types import Signal, Turn

EXCERPT = 200  # characters of a command that a signal shows
MAX_COMMAND = 20_000  # characters read of a command


class SignalKind(StrEnum):
    HIDDEN_PATH = "hidden_path"  # paths of the grader and of the patch extraction
    GIT_HISTORY = "git_history"  # commits other than the one the agent works on
    PACKAGE_DOWNLOAD = "package_download"  # a released package, which may hold the fix
    CODE_HOST = "code_host"  # a host of the project's published source
    NETWORK = "network"  # any other network access
    INSTALLED_COPY = "installed_copy"  # another copy of the project on the machine
    ENVIRONMENT = "environment"  # variables, memory or descriptors of other processes


# What a command may follow; then variables that are set for it.
_SEPARATOR = re.compile(
    r"^|[;&|(`\n{]|\b(?:sudo|then|do|else|xargs|time|exec|env)\s|\btimeout\s+\S{1,20}\s", re.MULTILINE
)
_ASSIGNMENTS = re.compile(r"\s{0,20}+(?:\w{1,50}+=\S{0,200}+\s{1,20}+){0,5}+")
_GIT = r"git(?:\s+(?>-[cC]\s+\S{1,200}|--?[\w-]+(?:=\S{1,200})?)){0,20}+\s+"
_PYTHON = r"(?:python[\d.]*\s+-m\s+|uv\s+)?"
_HOST = r"github(?:usercontent)?\.com|gitlab\.com|bitbucket\.org|codeload\.\w|sourceforge\.net"
_FETCH = r"(?:curl|wget|aria2c|http|https|lynx|ftp)\b"
_NEAR = 300  # characters between the two parts of a sign


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    kind: SignalKind
    command: re.Pattern[str] | None = None  # counts where a command starts
    anywhere: re.Pattern[str] | None = None
    near: re.Pattern[str] | None = None  # must follow within _NEAR characters, before a character of `end`
    absent: re.Pattern[str] | None = None  # must not follow so
    end: re.Pattern[str] = re.compile("\n")


def _sign(
    kind: SignalKind,
    command: str = "",
    *,
    anywhere: str = "",
    near: str = "",
    absent: str = "",
    end: str = "\n",
) -> _Sign:
    def compiled(pattern: str) -> re.Pattern[str] | None:
        return re.compile(pattern) if pattern else None

    return _Sign(
        kind=kind,
        command=compiled(command),
        anywhere=compiled(anywhere),
        near=compiled(near),
        absent=compiled(absent),
        end=re.compile(f"[{end}]"),
    )


# Only the first sign of a kind is reported.
_SIGNS = (
    _sign(SignalKind.HIDDEN_PATH, anywhere=rf"/srv/hone\b|{re.escape(BASE_GIT)}|\bBASE_GIT\b"),
    _sign(
        SignalKind.GIT_HISTORY,
        rf"{_GIT}(?:log|show|rev-list|grep|diff|shortlog|whatchanged)\b",
        near=r"\s(?:--all\b|--reflog\b|-g\b|--walk-reflogs\b|-S\S?|-G\S?|--remotes\b|--branches\b|--tags\b"
        r"|(?:origin|upstream)/\S|refs/\S|stash@|FETCH_HEAD|ORIG_HEAD|HEAD@\{)",
        end=";&|\n",
    ),
    _sign(
        SignalKind.GIT_HISTORY,
        rf"{_GIT}(?:reflog|fsck|stash\s+(?:list|show)|unpack-objects|verify-pack|show-index|for-each-ref"
        r"|ls-remote|bundle\s+unbundle)\b",
    ),
    _sign(SignalKind.GIT_HISTORY, rf"{_GIT}cat-file\s", near=r"--batch-all\b", end=";&|\n"),
    _sign(SignalKind.GIT_HISTORY, rf"{_GIT}log\s", near=r"--since\b", end=";&|\n"),
    _sign(SignalKind.GIT_HISTORY, anywhere=r"\.git/(?:logs|objects|packed-refs|refs|FETCH_HEAD|ORIG_HEAD)\b"),
    _sign(
        SignalKind.PACKAGE_DOWNLOAD,
        rf"{_PYTHON}(?:pip[\d.]*|conda|mamba|easy_install|pipx|poetry)\s+(?:download|index|search|wheel)\b",
    ),
    _sign(
        SignalKind.PACKAGE_DOWNLOAD,
        rf"{_PYTHON}(?:pip[\d.]*|conda|mamba|easy_install|pipx)\s+install\b"
        r"(?:\s+-{1,2}(?!e\b|r\b|editable\b|requirement\b|no-index\b)[\w-]+(?:=\S{1,200})?){0,20}+"
        r"\s+[\"']?[A-Za-z]",
    ),
    _sign(
        SignalKind.PACKAGE_DOWNLOAD,
        anywhere=r"pypi\.org|files\.pythonhosted\.org|pypi\.python\.org|anaconda\.org",
    ),
    _sign(SignalKind.CODE_HOST, rf"{_FETCH}|{_GIT}\w", near=_HOST),
    _sign(SignalKind.CODE_HOST, anywhere=r"urlopen|requests\.|httpx\.", near=_HOST),
    _sign(SignalKind.CODE_HOST, rf"{_GIT}clone\b|gh\s+\w"),
    _sign(SignalKind.NETWORK, _FETCH, near=r"https?://|ftp://|\w\.\w{2}", end="\n;|"),
    _sign(SignalKind.NETWORK, rf"{_GIT}(?:fetch|pull|ls-remote)\b"),
    _sign(
        SignalKind.NETWORK,
        anywhere=r"\b(?:urllib\.request|urlopen|requests\.(?:get|post)|httpx\.(?:get|post)"
        r"|socket\.create_connection)\b|/dev/tcp/",
    ),
    _sign(
        SignalKind.NETWORK,
        r"(?:apt|apt-get|apk|yum|dnf|npm|ssh|scp|nc|ncat|telnet|ping|nslookup|dig)\s",
        absent=r"(?:--version|\b(?:run|test))\b",
        end=";&|\n",
    ),
    _sign(
        SignalKind.INSTALLED_COPY,
        r"(?:find|locate|fd|ls|grep|rg)\b",
        near=r"\.orig\b|\.rej\b|\.whl\b|\.tar\.gz\b|\.dist-info",
        end=";&\n",
    ),
    _sign(
        SignalKind.INSTALLED_COPY, r"find\s+/(?!\w)", near=r"\.orig|\.patch|\.diff|site-packages", end=";&\n"
    ),
    _sign(SignalKind.INSTALLED_COPY, anywhere=r"(?:\.cache/(?:pip|uv)|/pip/(?:http|wheels))\b"),
    _sign(
        SignalKind.ENVIRONMENT,
        anywhere=r"/proc/(?:\*|\d+|\$\w+|\$\{\w+\}|\$\$|1|self|ppid|\{\w*\})"
        r"/(?:environ|mem|maps|fd|cmdline|root|cwd)\b|\bos\.getppid\(",
    ),
)
_WRITER = re.compile(r"\b(?:cat|tee)\b")
_DELIMITER = re.compile(r"<<-?[ \t]*[\"']?(\w{1,50})")


def scan_trajectory(turns: Sequence[Turn]) -> tuple[Signal, ...]:
    """Return signals in a trajectory's commands, each kind at most once per turn. Never raises.

    A signal is a hint: an agent that installs a tool or reads its own processes also causes one.
    """
    return tuple(signal for turn in turns if turn.action for signal in _signals(turn.index, turn.action))


def _signals(turn: int, action: str) -> Iterator[Signal]:
    command = _without_written(action[:MAX_COMMAND])
    ends = {separator.end() for separator in _SEPARATOR.finditer(command)}
    after = {match.end() for end in ends if (match := _ASSIGNMENTS.match(command, end))}
    starts = sorted(start for start in after if command[start : start + 1].isalpha())
    seen: set[SignalKind] = set()
    for sign in _SIGNS:
        start = None if sign.kind in seen else _first(sign, command, starts)
        if start is not None:
            seen.add(sign.kind)
            start = max(0, start - EXCERPT // 4)
            yield Signal(turn=turn, kind=sign.kind, command=command[start : start + EXCERPT].strip())


def _first(sign: _Sign, command: str, starts: Sequence[int]) -> int | None:
    """Return where a sign first is in a command, or None."""
    follows = sign.near or sign.absent
    places = [match.start() for match in follows.finditer(command)] if follows else []
    if sign.near and not places:
        return None
    if sign.command is not None:
        matches = (match for start in starts if (match := sign.command.match(command, start)))
    else:
        matches = sign.anywhere.finditer(command) if sign.anywhere else iter(())
    for match in matches:
        if follows is None:
            return match.start()
        ended = sign.end.search(command, match.end(), match.end() + _NEAR)
        last = ended.start() if ended else match.end() + _NEAR
        place = bisect_left(places, match.end())
        if (place < len(places) and places[place] <= last) == (sign.near is not None):
            return match.start()
    return None


def _without_written(command: str) -> str:
    """Return a command without text that it writes to files, as in `cat > notes.md <<'EOF'`."""
    lines = command.split("\n")
    ends: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        ends.setdefault(line.strip(" \t"), []).append(index)
    kept: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        kept.append(line)
        closing = ends.get(_delimiter(line) or "\n", [])
        place = bisect_right(closing, index)
        index = closing[place] + 1 if place < len(closing) else index + 1
    return "\n".join(kept)


def _delimiter(line: str) -> str | None:
    """Return the word that ends the text which a line writes, or None."""
    writes = line.rpartition("|")[2]
    writer = _WRITER.search(writes) if "<<" in writes else None
    found = _DELIMITER.findall(writes, writer.end()) if writer else []
    return found[-1] if found else None
