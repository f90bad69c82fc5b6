"""Parse a judge's reply into a vote, and combine votes into a judgement: pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hone.grading.judge.quote import BAR, clip

STORED_CHARACTERS = 4000  # of a vote's text
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_SCORES = {"+1": 1, "1": 1, "-1": -1}


class Status(StrEnum):
    """Result of judging a turn."""

    OK = "ok"  # at least one valid vote
    INVALID_RESULT = "invalid_result"  # replies without a valid vote
    EXCEPTION = "exception"  # no reply: the judge failed or was too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One reply of the judge, scored."""

    score: int  # +1 or -1; 0: invalid
    latency_ms: float
    raw_text: str  # the reply without its reasoning; long replies keep head and tail
    ok: bool  # it counts
    error: str | None = None  # why there is no reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The votes on one turn."""

    step_index: int  # the turn's index
    votes: tuple[Vote, ...]

    @property
    def status(self) -> Status:
        if any(vote.ok for vote in self.votes):
            return Status.OK
        failed = all(vote.error is not None for vote in self.votes)
        return Status.EXCEPTION if failed else Status.INVALID_RESULT

    @property
    def score(self) -> float:
        """The mean of the valid votes, in [-1, 1]; 0 without any."""
        valid = [vote.score for vote in self.votes if vote.ok]
        return sum(valid) / len(valid) if valid else 0.0

    def record(self) -> dict[str, Any]:
        """Return the record that is stored with the rollout."""
        valid = [vote.score for vote in self.votes if vote.ok]
        return {
            "status": self.status.value,
            "step_index": self.step_index,
            "scores": [vote.score for vote in self.votes],
            "valid_scores": valid,
            "valid_vote_count": len(valid),
            "mean_score": self.score,
            "votes": [dataclasses.asdict(vote) for vote in self.votes],
        }


def prm_record(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """Return the stored record of a rollout's judgements; `step_scores` is parallel to `step_details`."""
    scores = [judgement.score for judgement in judgements]
    return {
        "enabled": True,
        "step_scores": scores,
        "step_mean_score": sum(scores) / len(scores) if scores else 0.0,
        "step_details": [judgement.record() for judgement in judgements],
    }


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
