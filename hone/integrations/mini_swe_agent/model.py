"""A policy as a model of the package, and a sandbox as its environment (protocols of `minisweagent`)."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from jinja2 import StrictUndefined, Template
from minisweagent.exceptions import FormatError, LimitsExceeded, Submitted
from minisweagent.models.utils.actions_text import format_observation_messages, parse_regex_actions
from minisweagent.models.utils.actions_toolcall import (
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

from hone.agents.bash import (
    BASH_TOOL,
    Action,
    CommandResult,
    bash_step,
    finish_reason,
    malformed_call_error,
    run_command,
)
from hone.agents.contract import AgentRun
from hone.agents.scaffold import Mode, Scaffold
from hone.integrations.bridge import Ask
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox
from hone.types import Message

TOKEN_LIMIT = "TokenLimitExceeded"  # noqa: S105 - not one of the package's own
SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")  # keys of a message


class PolicyModelConfig(BaseModel):
    """The keys of the YAML's section `model` that concern messages."""

    model_name: str
    model_kwargs: dict[str, Any]
    observation_template: str
    format_error_template: str
    action_regex: str


class PolicyModel:
    """Asks the rollout's chat; the package's own functions parse and format."""

    def __init__(self, rollout: Rollout) -> None:
        scaffold = rollout.scaffold
        self.config = PolicyModelConfig(
            model_name=str(scaffold.written.get("model_name", "policy")),
            model_kwargs=scaffold.written.get("model_kwargs", {}),
            observation_template=scaffold.observation_template,
            format_error_template=scaffold.format_error_template,
            action_regex=scaffold.action_regex,
        )
        self._rollout = rollout
        self._tools = scaffold.mode is Mode.TOOLS

    def query(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Return the reply as the package's message. Raises FormatError, which holds the answer to it."""
        reply = self._rollout.query(messages)
        sampled = {"node": reply.node, "prompt_tokens": reply.prompt_tokens, "tokens": reply.sampled_tokens}
        extra = {"response": sampled, "cost": 0.0, "timestamp": time.time()}
        try:
            actions = self._actions(reply)
        except FormatError as error:
            error.messages[0]["extra"] |= extra | {"response": sampled | {"message": reply.to_message()}}
            self._rollout.end_turn(error.messages, readable=False)
            raise
        return reply.to_message() | {"extra": {"actions": actions, **extra}}

    def _actions(self, reply: Reply) -> list[dict[str, Any]]:
        template = self.config.format_error_template
        if not self._tools:
            ended = {"finish_reason": "length" if reply.truncated else "stop"}
            return parse_regex_actions(
                reply.content,
                action_regex=self.config.action_regex,
                format_error_template=template,
                template_kwargs=ended,
            )
        ended = {"finish_reason": finish_reason(reply)}
        if reply.malformed:  # a server would have dropped it silently
            variables = {
                "error": malformed_call_error(reply.malformed[0]),
                "actions": [],
                "has_tool_calls": True,
            }
            text = Template(template, undefined=StrictUndefined).render(**variables, **ended)
            raise FormatError({"role": "user", "content": text, "extra": {"interrupt_type": "FormatError"}})
        calls = [
            SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
            for call in reply.tool_calls
        ]
        return parse_toolcall_actions(calls, format_error_template=template, template_kwargs=ended)

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self,
        message: dict[str, Any],
        outputs: list[dict[str, Any]],
        template_vars: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the answers to the commands, and end the turn."""
        template = self.config.observation_template
        if self._tools:
            answers = format_toolcall_observation_messages(
                actions=message["extra"]["actions"],
                outputs=outputs,
                observation_template=template,
                template_vars=template_vars,
            )
        else:
            answers = format_observation_messages(
                outputs, observation_template=template, template_vars=template_vars
            )
        self._rollout.end_turn(answers)
        return answers

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return self.config.model_dump()

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"model": self.config.model_dump(mode="json"), "model_type": kind}}}


class SandboxEnvironmentConfig(BaseModel):
    """The section `environment` of the YAML."""

    cwd: str
    env: dict[str, str]
    timeout: int | float
    interpreter: list[str]


class SandboxEnvironment:
    """One running sandbox; the caller closes it."""

    def __init__(self, rollout: Rollout) -> None:
        scaffold = rollout.scaffold
        self.config = SandboxEnvironmentConfig(
            cwd=scaffold.cwd or rollout.workdir,
            env=dict(scaffold.env),
            timeout=scaffold.timeout_s,
            interpreter=list(scaffold.interpreter),
        )
        self._rollout = rollout

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run a command. Raises Submitted when its output submits."""
        config = self.config
        result = self._rollout.execute(
            action.get("command", ""), timeout_s=config.timeout, cwd=cwd or config.cwd, env=config.env
        )
        if result.submits(self._rollout.scaffold.submits):
            self._rollout.end_turn([])
            submission = "".join(result.output.lstrip().splitlines(keepends=True)[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return result.variables

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}


class Rollout:
    """One rollout of the package, in the package's thread: its requests to Hone and its record.

    Every method blocks and raises `hone.integrations.bridge.Stopped` when the rollout is over.
    """

    def __init__(
        self, ask: Ask, sandbox: Sandbox, chat: Chat, run: AgentRun, scaffold: Scaffold, *, token_limit: int
    ) -> None:
        self.run = run
        self.scaffold = scaffold
        self.workdir = sandbox.spec.workdir
        self._ask = ask
        self._sandbox = sandbox
        self._chat = chat
        self._tools = [BASH_TOOL] if scaffold.mode is Mode.TOOLS else None
        self._token_limit = token_limit
        self._tokens = self._seen = 0
        self._reply: Reply | None = None  # of the current turn
        self._actions: list[Action] = []
        self._results: list[CommandResult] = []
        self._started = 0.0

    def query(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Begin a turn; return the policy's reply. Raises LimitsExceeded when no tokens are left."""
        self.catch_up(messages)
        if 0 < self._token_limit <= self._tokens:
            extra = {"exit_status": TOKEN_LIMIT, "submission": ""}
            raise LimitsExceeded({"role": "exit", "content": TOKEN_LIMIT, "extra": extra})
        self._started, self._actions, self._results = time.monotonic(), [], []
        asked = list(self.run.messages)
        self._reply = self._ask(lambda: self._chat.reply(asked, tools=self._tools))
        self._tokens += self._reply.sampled_tokens
        return self._reply

    def execute(self, command: Any, *, timeout_s: float, cwd: str, env: dict[str, str]) -> CommandResult:
        result = self._ask(
            lambda: run_command(
                self._sandbox,
                command,
                interpreter=self.scaffold.interpreter,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
            )
        )
        self._actions.append(Action(command=command))
        self._results.append(result)
        return result

    def end_turn(self, answers: Sequence[dict[str, Any]], *, readable: bool = True) -> None:
        """Record the current turn, while the sandbox is as it left it.

        Args:
            answers: the messages that the package is about to append.
            readable: False for a reply that it cannot parse, which it does not append.
        """
        assert self._reply is not None, "a turn begins with a reply"
        self._take([self._reply.to_message(), *answers] if readable else answers)
        step = bash_step(self._actions, self._results, answers)
        turn = step.turn(self.run, self._reply, time.monotonic() - self._started)
        self._ask(lambda: self.run.record(turn))

    def catch_up(self, messages: Sequence[dict[str, Any]]) -> None:
        """Record the messages of the package that are not yet in the record."""
        self._take(messages[self._seen :])

    def _take(self, messages: Sequence[dict[str, Any]]) -> None:
        fresh: list[Message] = [
            {key: message[key] for key in SENT if key in message}
            for message in messages
            if message["role"] != "exit"
        ]
        self._seen += len(messages)
        self.run.messages.extend(fresh)
