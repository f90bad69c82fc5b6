"""Signals that an agent searched for the fix outside the repository; for reports, not a boundary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


_START = (  # start of a command, with variables set for it
    r"(?:^|[;&|(`\n{]|\$\(|\b(?:sudo|then|do|else|xargs|time|exec|env)\s|\btimeout\s+\S{1,20}\s)\s{0,20}"
    r"(?:\w{1,50}=\S{0,200}\s{1,20}){0,5}"
)
_GIT = rf"{_START}git(?:\s+(?>-[cC]\s+\S+|--?[\w-]+(?:=\S+)?))*+\s+"
_HOST = (
    r"(?:[\w.-]{1,99}\.)?"
    r"(?:github(?:usercontent)?\.com|gitlab\.com|bitbucket\.org|codeload\.\w+|sourceforge\.net)"
)
_PYPI = r"(?:pypi\.org|files\.pythonhosted\.org|pypi\.python\.org|anaconda\.org)"
_FETCH = r"(?:curl|wget|aria2c|http|https|lynx|ftp)"

_PATTERNS: tuple[tuple[SignalKind, str], ...] = (
    (SignalKind.HIDDEN_PATH, rf"/srv/hone\b|{re.escape(BASE_GIT)}|\bBASE_GIT\b"),
    (
        SignalKind.GIT_HISTORY,
        rf"{_GIT}(?:log|show|rev-list|grep|diff|shortlog|whatchanged)\b[^;&|\n]{{0,300}}"
        r"\s(?:--all\b|--reflog\b|-g\b|--walk-reflogs\b|-S\S?|-G\S?|--remotes\b|--branches\b|--tags\b"
        r"|(?:origin|upstream)/\S|refs/\S|stash@|FETCH_HEAD|ORIG_HEAD|HEAD@\{)",
    ),
    (
        SignalKind.GIT_HISTORY,
        rf"{_GIT}(?:reflog|fsck|cat-file\s+[^;&|\n]{{0,300}}--batch-all|stash\s+(?:list|show)|unpack-objects|verify-pack"
        r"|show-index|for-each-ref|ls-remote|bundle\s+unbundle|log\s+[^;&|\n]{0,300}--since)\b",
    ),
    (SignalKind.GIT_HISTORY, r"\.git/(?:logs|objects|packed-refs|refs|FETCH_HEAD|ORIG_HEAD)\b"),
    (
        SignalKind.PACKAGE_DOWNLOAD,
        rf"{_START}(?:python[\d.]*\s+-m\s+|uv\s+)?(?:pip[\d.]*|conda|mamba|easy_install|pipx|poetry)\s+"
        r"(?:download|index|search|wheel)\b",
    ),
    (
        SignalKind.PACKAGE_DOWNLOAD,
        rf"{_START}(?:python[\d.]*\s+-m\s+|uv\s+)?(?:pip[\d.]*|conda|mamba|easy_install|pipx)\s+install\b"
        r"(?:\s+-{1,2}(?!e\b|r\b|editable\b|requirement\b|no-index\b)[\w-]+(?:=\S+)?)*\s+[\"']?[A-Za-z][\w.\[\]-]*",
    ),
    (SignalKind.PACKAGE_DOWNLOAD, _PYPI),
    (
        SignalKind.CODE_HOST,
        rf"(?:{_START}{_FETCH}\b|urlopen|requests\.|httpx\.|{_GIT}\w+)[^\n]{{0,300}}{_HOST}",
    ),
    (SignalKind.CODE_HOST, rf"{_GIT}clone\b|{_START}gh\s+\w+"),
    (
        SignalKind.NETWORK,
        rf"{_START}{_FETCH}\b[^\n;|]{{0,300}}(?:https?://|ftp://|\w\.\w{{2,}})|{_GIT}(?:fetch|pull|ls-remote)\b"
        r"|\b(?:urllib\.request|urlopen|requests\.(?:get|post)|httpx\.(?:get|post)|socket\.create_connection)\b"
        rf"|{_START}(?:apt|apt-get|apk|yum|dnf|npm|ssh|scp|nc|ncat|telnet|ping|nslookup|dig)\s"
        r"(?!.{0,99}\b(?:--version|run|test)\b)|/dev/tcp/",
    ),
    (
        SignalKind.INSTALLED_COPY,
        rf"{_START}(?:find|locate|fd|ls|grep|rg)\b[^;&\n]{{0,300}}(?:\.orig\b|\.rej\b|\.whl\b|\.tar\.gz\b|\.dist-info)"
        rf"|{_START}find\s+/(?!\w)[^;&\n]{{0,300}}(?:\.orig|\.patch|\.diff|site-packages)"
        r"|(?:\.cache/(?:pip|uv)|/pip/(?:http|wheels))\b",
    ),
    (
        SignalKind.ENVIRONMENT,
        r"/proc/(?:\*|\d+|\$\w+|\$\{\w+\}|\$\$|1|self|ppid|\{\w*\})/(?:environ|mem|maps|fd|cmdline|root|cwd)\b|\bos\.getppid\(",
    ),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.MULTILINE)) for kind, pattern in _PATTERNS)
# Text written to a file is not a command: `cat > notes.md <<'EOF'`.
_WRITTEN = re.compile(
    r"^([^\n]{0,300}\b(?:cat|tee)\b[^\n|]{0,300}<<-?[ \t]*[\"']?(\w{1,50})[\"']?[^\n|]{0,300})\n"
    r".*?^[ \t]*\2[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def scan_trajectory(turns: Sequence[Turn]) -> tuple[Signal, ...]:
    """Return signals in a trajectory's commands, each kind at most once per turn. Never raises.

    A signal is a hint: an agent that installs a tool or reads its own processes also causes one.
    """
    return tuple(signal for turn in turns if turn.action for signal in _signals(turn.index, turn.action))


def _signals(turn: int, action: str) -> Iterator[Signal]:
    command = _WRITTEN.sub(r"\1", action[:MAX_COMMAND])
    seen: set[SignalKind] = set()
    for kind, pattern in _COMPILED:
        match = None if kind in seen else pattern.search(command)
        if match is not None:
            seen.add(kind)
            start = max(0, match.start() - EXCERPT // 4)
            yield Signal(turn=turn, kind=kind, command=command[start : start + EXCERPT].strip())
