"""The mini-swe-agent package's own models, with given replies."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would be fetched otherwise

import litellm
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

from tests.integrations.package import GivenReply, tool_calls


class _Scripted:
    """Gives the package's own models their replies where they would ask a server."""

    replies: list[GivenReply]
    end: GivenReply
    requests: list[list[dict[str, Any]]]

    def _query(self, messages: list[dict[str, Any]], **kwargs: Any) -> litellm.ModelResponse:
        number = len(self.requests)
        given = self.replies[number] if number < len(self.replies) else self.end
        self.requests.append(messages)
        message: dict[str, Any] = {"role": "assistant", "content": given.content}
        if given.calls:
            message["tool_calls"] = tool_calls(given, number)
        if given.reasoning:
            message["reasoning_content"] = given.reasoning
        ended = "length" if given.truncated else "tool_calls" if given.calls else "stop"
        return litellm.ModelResponse(choices=[{"finish_reason": ended, "index": 0, "message": message}])

    def _calculate_cost(self, response: object) -> dict[str, float]:
        return {"cost": 0.0}


class ToolModel(_Scripted, LitellmModel): ...


class TextModel(_Scripted, LitellmTextbasedModel): ...
