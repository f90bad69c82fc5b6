"""Parse a judge's reply into a vote: pure functions."""

from __future__ import annotations

import re

from hone.grading.judge.quote import BAR, clip
from hone.types import Vote

STORED_CHARACTERS = 4000  # of a vote's text
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_SCORES = {"+1": 1, "1": 1, "-1": -1}


def read_score(reply: str) -> int | None:
    r"""Return +1 or -1 when all boxed marks of the judge's answer agree, otherwise None.

    Lines behind a bar are quotations and do not count, nor does text before the end of the reasoning. Every
    boxed mark in the rest must be +1 (or 1), or every one -1.

    Example: read_score("Relevant and right. \\boxed{+1}") -> 1; "\\boxed{+1} ... \\boxed{-1}" -> None.
    """
    answer = reply.rpartition("</think>")[2]
    own = "\n".join(line for line in answer.splitlines() if not line.lstrip().startswith(BAR.strip()))
    marks = {_SCORES.get(found.strip()) for found in _BOXED.findall(own)}
    return marks.pop() if len(marks) == 1 else None


def vote_of(reply: str, *, truncated: bool, latency_ms: float) -> Vote:
    """Return the vote of a reply; a truncated reply is invalid, because its conclusion is missing."""
    score = None if truncated else read_score(reply)
    text = clip(reply, STORED_CHARACTERS)
    return Vote(score=score or 0, latency_ms=latency_ms, raw_text=text, ok=score is not None)


def failed_vote(error: str, *, latency_ms: float) -> Vote:
    """Return the vote of a judge that did not reply."""
    return Vote(score=0, latency_ms=latency_ms, raw_text="", ok=False, error=error)
