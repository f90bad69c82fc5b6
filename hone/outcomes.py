"""How a rollout can end, and what each ending means for training: one closed table.

The rule that must not break: a failure that the policy can cause is never excused as infrastructure, and the
reverse. Recipes may change rewards and masks (see `hone.rollout.settings`), never the fault column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Who caused an outcome. Recipes may change rewards and masks, never this."""

    NONE = "none"
    POLICY = "policy"
    INFRASTRUCTURE = "infrastructure"


class Outcome(StrEnum):
    """How a rollout ended: the closed list. `OUTCOME_RULES` says what each means for training."""

    RESOLVED = "resolved"  # submitted, and every hidden check passes
    UNRESOLVED = "unresolved"  # submitted, and some hidden check fails
    NO_PATCH = "no_patch"  # submitted without changing anything
    TURN_LIMIT = "turn_limit"  # the replies of `agent.turn_limit` are used up
    CONTEXT_LIMIT = "context_limit"  # the conversation no longer fits the model
    TIME_LIMIT = "time_limit"  # the seconds of `rollout.time_limit_s`, or of the agent, are used up
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - the budget of sampled tokens is spent
    FORMAT_LIMIT = "format_limit"  # replies without exactly one action, or one that cannot be rendered
    BROKE_SANDBOX = "broke_sandbox"  # the agent's own command killed its sandbox
    CRASHED = "crashed"  # an unexpected error of Hone's, after the policy has acted
    TAMPERED = "tampered"  # the patch tried to influence its own grading
    SANDBOX_ERROR = "sandbox_error"  # no sandbox started, or its machine failed
    ENGINE_ERROR = "engine_error"  # the engine gave no reply
    GRADER_ERROR = "grader_error"  # grading gave no verdict
    CANCELLED = "cancelled"  # stale, or shut down


class Trained(StrEnum):
    YES = "yes"
    BY_CONFIG = "by_config"  # trained unless the recipe masks it; still in the baseline
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRule:
    fault: Fault
    reward: float | None  # the default; None: no reward
    trained: Trained
    in_baseline: bool
    graded: bool = False  # a patch, where one exists, is graded and may still resolve the task


def _policy(trained: Trained = Trained.YES, *, graded: bool = False) -> OutcomeRule:
    return OutcomeRule(fault=Fault.POLICY, reward=-1.0, trained=trained, in_baseline=True, graded=graded)


_LIMIT = _policy(Trained.BY_CONFIG, graded=True)
_INFRASTRUCTURE = OutcomeRule(
    fault=Fault.INFRASTRUCTURE, reward=None, trained=Trained.NEVER, in_baseline=False
)

OUTCOME_RULES: Mapping[Outcome, OutcomeRule] = {
    Outcome.RESOLVED: OutcomeRule(fault=Fault.NONE, reward=1.0, trained=Trained.YES, in_baseline=True),
    Outcome.UNRESOLVED: _policy(),
    Outcome.NO_PATCH: _policy(),
    Outcome.TURN_LIMIT: _LIMIT,
    Outcome.CONTEXT_LIMIT: _LIMIT,
    Outcome.TIME_LIMIT: _LIMIT,
    Outcome.TOKEN_LIMIT: _LIMIT,
    Outcome.FORMAT_LIMIT: _policy(),
    Outcome.BROKE_SANDBOX: _policy(),
    Outcome.CRASHED: _policy(),
    Outcome.TAMPERED: _policy(),
    Outcome.SANDBOX_ERROR: _INFRASTRUCTURE,
    Outcome.ENGINE_ERROR: _INFRASTRUCTURE,
    Outcome.GRADER_ERROR: _INFRASTRUCTURE,
    Outcome.CANCELLED: _INFRASTRUCTURE,
}
