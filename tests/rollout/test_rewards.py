from __future__ import annotations

import pytest
from pydantic import ValidationError

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.rewards import reward_of, solved
from hone.rollout.settings import RolloutSettings
from hone.types import Verdict

YES = Verdict(resolved=True, tests={}, score=1.0)
NO = Verdict(resolved=False, tests={}, score=0.0)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_infrastructure_faults_have_no_reward(outcome: Outcome):
    infrastructure = OUTCOME_RULES[outcome].fault is Fault.INFRASTRUCTURE
    assert (reward_of(outcome, None, {}) is None) == infrastructure


def test_limit_with_resolving_patch_gets_reward_of_a_fix():
    limits = {outcome for outcome, rule in OUTCOME_RULES.items() if rule.graded}
    assert Outcome.TIME_LIMIT in limits
    for outcome in Outcome:
        worth = reward_of(outcome, YES, {})
        assert (worth == 1.0) == (outcome in limits or outcome is Outcome.RESOLVED), outcome
        assert solved(outcome, YES) == (worth == 1.0)
        assert not solved(outcome, NO)
    assert reward_of(Outcome.TURN_LIMIT, NO, {}) == -1.0


def test_recipe_cannot_reward_infrastructure_faults():
    settings = RolloutSettings(rewards={Outcome.RESOLVED: 2.0, Outcome.NO_PATCH: -0.5})
    assert reward_of(Outcome.TURN_LIMIT, YES, settings.rewards) == 2.0
    assert reward_of(Outcome.NO_PATCH, None, settings.rewards) == -0.5
    with pytest.raises(ValidationError, match="sandbox_error: an infrastructure fault has no reward"):
        RolloutSettings(rewards={Outcome.SANDBOX_ERROR: 0.0})


def test_only_limits_can_be_masked():
    assert RolloutSettings(masked=frozenset({Outcome.TIME_LIMIT})).masked == {Outcome.TIME_LIMIT}
    with pytest.raises(ValidationError, match="only turn_limit"):
        RolloutSettings(masked=frozenset({Outcome.TAMPERED}))
