"""Parking of sandboxes is refused where it would have no effect."""

from __future__ import annotations

import pytest

from hone.config import ConfigError, dump, resolve

PARK = ["rollout.park_after_s=60"]


def test_recipe_with_parking_round_trips(tmp_path) -> None:
    settings = resolve(None, [*PARK, "rollout.sandboxes=4"])
    path = tmp_path / "config.toml"
    path.write_text(dump(settings))
    assert resolve(path) == settings


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([*PARK, "sandbox.provider=docker"], 'which sandbox.provider = "docker" does not have'),
        ([*PARK, "sandbox.provider=pool"], 'which sandbox.provider = "pool" does not have'),
        ([*PARK, "agent.kind=debugger"], 'does not work with agent.kind = "debugger"'),
        ([*PARK, "agent.kind=blackbox", "agent.program=qwen-code"], 'agent.kind = "blackbox"'),
        (
            ["rollout.sandboxes=4"],
            "sandboxes has no effect without park_after_s",
        ),
    ],
)
def test_parking_without_effect_is_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve(None, sets)
