"""The process reward model: a judge that scores each turn, protected from prompt injection."""

from hone.grading.judge.judge import Judge, JudgeChat, TurnJudge, read_score
from hone.grading.judge.prompt import Evidence, judge_messages
from hone.grading.judge.quote import Quoter, clip, control_tokens

__all__ = [
    "Evidence",
    "Judge",
    "JudgeChat",
    "Quoter",
    "TurnJudge",
    "clip",
    "control_tokens",
    "judge_messages",
    "read_score",
]
