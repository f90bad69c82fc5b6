"""Settings of an agent from the values of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from hone.agents.settings import AnyAgentSettings

_ADAPTER: TypeAdapter[AnyAgentSettings] = TypeAdapter(AnyAgentSettings)


def agent_settings(values: Mapping[str, Any]) -> AnyAgentSettings:
    return _ADAPTER.validate_python({"kind": "bash", **values})
