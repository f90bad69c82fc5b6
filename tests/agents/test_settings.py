"""Validation of the agent's settings."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hone.agents.settings import (
    BashAgentSettings,
    BlackboxAgentSettings,
    ContextSettings,
    DebuggerAgentSettings,
    DemonstratorSettings,
)
from tests.agents.settings import agent_settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"program": "qwen-code"}, r"bash\.program\s+Extra inputs are not permitted"),
        ({"pdb": False}, r"bash\.pdb\s"),
        ({"kind": "oracle", "token_limit": 9}, r"oracle\.token_limit\s"),
        ({"kind": "noop", "context": {"policy": "drop_thinking"}}, r"noop\.context\s"),
        ({"accuracy": 0.9}, r"bash\.accuracy\s"),
        ({"kind": "blackbox", "program": "qwen-code", "prompts": "tiny"}, r"blackbox\.prompts\s"),
        ({"kind": "blackbox"}, "needs a program"),
        ({"context": {"head_ratio": 0.5}}, "head_ratio has no effect on policy = 'none'"),
    ],
)
def test_setting_without_effect_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        agent_settings(given)


def test_settings_accept_the_kinds_that_use_them() -> None:
    BlackboxAgentSettings(kind="blackbox", program="qwen-code", turn_limit=3, token_limit=10)
    DebuggerAgentSettings(
        kind="debugger", pdb=False, context=ContextSettings(policy="head_tail", head_ratio=0.2)
    )
    DemonstratorSettings(kind="demonstrator", accuracy=1.0, favourite=0.1, prompts="tiny", seed=5)
    BashAgentSettings(kind="bash", seed=7)  # a run's seed is every group's
    assert ContextSettings(policy="head_tail").head_ratio == 0.3
