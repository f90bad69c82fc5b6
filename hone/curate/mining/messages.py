"""Classification of commit messages."""

from __future__ import annotations

import re
from enum import StrEnum

from hone.curate.mining.refusal import Reason


class Likelihood(StrEnum):
    CLEAR = "clear"  # it mentions a bug or a fix
    UNCLEAR = "unclear"


_MERGE = re.compile(
    r"Merge (pull request|branch|branches|remote-tracking branch|tag|commit|PR|#\d+)\b.*", re.I
)
_TRAILER = re.compile(
    r"(signed-off-by|co-authored-by|reviewed-by|acked-by|tested-by|reported-by|suggested-by|change-id|cc|"
    r"reviewed-on|differential revision|committed-by|helped-by|git-svn-id|pr-url|refs|assisted-by|"
    r"generated-by|\(?cherry[- ]picked from commit).*",
    re.I,
)
_DOES = r"(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?|refs?|see):?\s*"
_NUMBER = r"(?:gh-|issue[ #]*|bug[ #]*|pr[ #]*|#)\d+"
_NUMBERS = re.compile(
    rf"\s*[(\[](?:{_DOES})?{_NUMBER}(?:(?:,|,? and)?\s*(?:{_DOES})?{_NUMBER})*[)\]]"
    rf"|[,;]?\s+{_DOES}{_NUMBER}(?:(?:,|,? and)\s*{_NUMBER})*\.?$",
    re.I,
)

_TWO_BRANCHES = re.compile(
    r"revert\b|merge (branch )?['\"]?(upstream/|origin/)?(stable|main|master|dev|develop|maint\w*|\d[\d.x]*)"
    r"['\"]?( into\b|$)|merge (stable|main|master|dev)\b",
    re.I,
)
_RELEASE = re.compile(
    r"(release|prepare|pre-?release|bump|version|update version|tag|post[- ]release)\b|v?\d+\.\d+(\.\d+)*\s*$"
    r"|.*\b(bump (the )?version|version bump|pre-commit|dependabot|changelog for|update dependenc\w+)\b"
    r"|back to development|.*\bupdate requirement\b",
    re.I,
)
_CONVENTIONAL = r"(docs?|documentation|refactor|chore|style|ci|build|tests?|testing|types?|typing|lint)"
_NO_FIX = re.compile(
    rf"{_CONVENTIONAL}(\([^)]*\))?!?:|.*\btypos?\b|(docs?|documentation|docstrings?|readme|refactor|reformat|"
    r"lint|clean ?up|tidy|rename|modernize|pyupgrade|blacken|black|isort|flake8|mypy|typing|coverage)\b"
    r"|.*\b(fix|update|improve|add|correct) (the )?(docs?|documentation|docstrings?|readme|tests?|lint\w*|"
    r"formatting|type (hints?|annotations?)|mypy|typing|ci|build|links?)\b",
    re.I,
)
_CLEAR = re.compile(
    r"\b(fix(e[sd]|ing)?|bug(s|fix(es)?)?|issues?|close[sd]?|resolve[sd]?|regression|crash(e[sd]|ing)?|"
    r"wrong(ly)?|incorrect(ly)?|correct(ly)?|broken|break(s|ing)?|fail(s|ed|ing|ures?)?|errors?|exceptions?|"
    r"raises?|traceback|leak(s|ing)?|infinite|hangs?|proper(ly)?|prevent(s|ed)?|avoid(s|ed)?|don'?t|do not|"
    r"should|missing|invalid|handle[sd]?|handling|ignore[sd]?|respect(s|ed)?|preserve[sd]?|honou?r(s|ed)?|"
    r"no longer|unexpected|mishandle[sd]?|GHSA-[\w-]+|CVE-[\d-]+|edge cases?)\b",
    re.I,
)
_REFERENCE = re.compile(r"(?:/issues/|\b(?:gh-|issue[ #]*|bug[ #]*)|(?<![\w&/])#)(\d{1,7})\b(?!\.\d)", re.I)


def strip_tool_text(message: str) -> str:
    """Return a message without the text that tools add: merge line, trailers, pull request number."""
    lines = [line.rstrip() for line in message.replace("\r", "").splitlines()]
    lines = [line for line in lines if not _TRAILER.fullmatch(line.strip())]
    if lines and _MERGE.fullmatch(lines[0]):
        lines = lines[1:]
    text = "\n".join(lines).strip()
    title, _, body = text.partition("\n")
    return f"{_NUMBERS.sub('', title).strip()}\n{body}".strip()


def classify_message(message: str) -> Likelihood | Reason:
    """Return how likely the message describes a fix, or the reason why it describes another kind of work."""
    text = strip_tool_text(message)
    title = text.partition("\n")[0]
    first = message.partition("\n")[0]
    if (
        _TWO_BRANCHES.match(title)
        or "This reverts commit" in text
        or (not text and _TWO_BRANCHES.match(first))
    ):
        return Reason.MERGED_BRANCH
    if _RELEASE.match(title):
        return Reason.RELEASE
    if _NO_FIX.match(title):
        return Reason.NO_FIX
    return Likelihood.CLEAR if _CLEAR.search(text) else Likelihood.UNCLEAR


def references(message: str) -> list[int]:
    """Return the issue numbers that a message names, each once; the number of a merge comes last."""
    first, _, rest = message.partition("\n")
    ordered = f"{rest}\n{first}" if _MERGE.fullmatch(first) else message
    return list(dict.fromkeys(int(number) for number in _REFERENCE.findall(ordered)))
