"""The real mini-swe-agent package with given replies, and Hone's agents with the same ones."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

import yaml
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment, LocalEnvironmentConfig

from hone.agents.scaffold import SUBMIT
from hone.outcomes import Outcome
from hone.policy.reply import Reply
from hone.types import Message, TokenTree

SHIPPED = {path.stem: path for path in sorted(Path(builtin_config_dir).rglob("*.yaml"))}
OUTCOMES = {
    "Submitted": None,
    "LimitsExceeded": Outcome.TURN_LIMIT,
    "TimeExceeded": Outcome.TIME_LIMIT,
    "RepeatedFormatError": Outcome.FORMAT_LIMIT,
}


@dataclass(frozen=True)
class GivenReply:
    """One reply, before either side has made a message of it."""

    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # (tool, arguments as text)
    truncated: bool = False
    reasoning: str | None = None


def call(command: Any, tool: str = "bash") -> tuple[str, str]:
    return tool, json.dumps({"command": command})


def tool_calls(given: GivenReply, number: int) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{number}_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(given.calls)
    ]


class Replies:
    """Hone's side: a chat that gives the replies in order, and submits when they are used up."""

    def __init__(self, replies: list[GivenReply], *, tools: bool, end: GivenReply) -> None:
        self.tree, self.requests, self.tools = TokenTree(), list[list[Message]](), tools
        self._replies, self._end = replies, end
        self.max_prompt_tokens = 1 << 30

    def measure(self, messages: object, **options: object) -> int:
        return 0

    async def reply(self, messages: list[Message], *, tools: object = None, **options: object) -> Reply:
        number = len(self.requests)
        given = self._replies[number] if number < len(self._replies) else self._end
        self.requests.append([dict(message) for message in messages])
        assert bool(tools) == self.tools
        return Reply(
            content=given.content,
            node=None,
            reasoning=given.reasoning,
            tool_calls=tuple(tool_calls(given, number)),
            truncated=given.truncated,
            sampled_tokens=10,
        )


class _Config(LocalEnvironmentConfig):
    timeout: float = 30  # type: ignore[assignment]


@dataclass
class Done:
    messages: list[Message]
    requests: list[list[Message]]
    status: str
    calls: int
    data: dict[str, Any] = field(repr=False)


def run_package(
    config: Path, replies: list[GivenReply], *, tools: bool, end: GivenReply, **limits: Any
) -> Done:
    """The package's agent and model on this host's own shell; `limits` are the agent's, and `timeout`."""
    from tests.integrations.package_models import TextModel, ToolModel  # here: they take seconds to import

    written = yaml.safe_load(config.read_text())
    timeout = limits.pop("timeout", written.get("environment", {}).get("timeout", 30))
    env = written.get("environment", {}).get("env", {})
    environment = LocalEnvironment(
        config_class=_Config, cwd="/tmp", timeout=timeout, env=env | {"PATH": os.environ["PATH"]}
    )
    settings = {
        key: value
        for key, value in written["model"].items()
        if key in ("observation_template", "format_error_template", "action_regex")
    }
    kind = ToolModel if tools else TextModel
    model = kind(model_name="policy", cost_tracking="ignore_errors", **settings)
    model.replies, model.end, model.requests = replies, end, []
    given = {k: v for k, v in (written["agent"] | limits).items() if k in AgentConfig.model_fields}
    agent = DefaultAgent(model, environment, **given)
    info = agent.run(task="1 + 1 gives 3.")
    data = agent.serialize()
    messages = [clean(m) for m in agent.messages if m["role"] != "exit"]
    requests = [[clean(m) for m in messages] for messages in model.requests]
    return Done(messages, requests, info["exit_status"], agent.n_calls, data)


def clean(message: dict[str, Any]) -> Message:
    """Return the keys of a message that a model sees."""
    kept = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")
    shown = {key: message[key] for key in kept if message.get(key)}
    shown["content"] = message.get("content") or ""
    return shown


def ending(config: Path, *, tools: bool) -> GivenReply:
    """The reply that submits."""
    command = f"echo {SUBMIT}"
    if tools:
        return GivenReply(calls=(call(command),))
    regex = yaml.safe_load(config.read_text())["model"].get(
        "action_regex", "```mswea_bash_command\n(.*?)\n```"
    )
    return GivenReply(content="Done.\n\n" + re.sub(r"\(\.\*\?\)", lambda _: command, regex))
