"""Validation of the agent's settings."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hone.agents.settings import AgentSettings, ContextSettings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"program": "qwen-code"}, "program has no effect on kind = 'bash', only on blackbox"),
        ({"pdb": False}, "only on debugger"),
        ({"kind": "oracle", "token_limit": 9}, "token_limit has no effect on kind = 'oracle'"),
        ({"kind": "noop", "context": {"policy": "drop_thinking"}}, "context has no effect"),
        ({"accuracy": 0.9}, "only on demonstrator"),
        ({"kind": "blackbox", "program": "qwen-code", "prompts": "tiny"}, "prompts has no effect"),
        ({"kind": "blackbox"}, "needs a program"),
        ({"context": {"head_ratio": 0.5}}, "head_ratio has no effect on policy = 'none'"),
    ],
)
def test_setting_without_effect_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AgentSettings.model_validate(given)


def test_settings_accept_the_kinds_that_use_them() -> None:
    AgentSettings(kind="blackbox", program="qwen-code", turn_limit=3, token_limit=10)
    AgentSettings(kind="debugger", pdb=False, context=ContextSettings(policy="head_tail", head_ratio=0.2))
    AgentSettings(kind="demonstrator", accuracy=1.0, favourite=0.1, prompts="tiny", seed=5)
    AgentSettings(kind="bash", seed=7)  # a run's seed is every group's
    assert ContextSettings(policy="head_tail").head_ratio == 0.3
