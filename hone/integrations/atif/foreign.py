"""ATIF documents of other programs as trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from hone.integrations.atif.schema import AtifError, Document, Metrics, Step, ToolCall
from hone.integrations.conversation import text_of
from hone.outcomes import Outcome
from hone.types import Call, Int32, Message, Node, Sampler, TokenTree, Trajectory, Turn

UNKNOWN_VERSION = -1  # ATIF does not say which weights sampled a token
ENGINE = "external"


def from_foreign(document: Document, *, name: str, schema: str) -> Trajectory:
    """Return the trajectory of a document without `extra.hone`.

    A reply is a sampled node of the tree if its step is one call with the ids of prompt and completion and a
    log-probability for each completion token; the weight version is `UNKNOWN_VERSION`. ATIF holds no grade,
    so the outcome is grader_error, which is never trained. Steps of embedded sub-agents are left out.

    Raises AtifError when the numbers of completion tokens and log-probabilities differ.
    """
    identity = document.trajectory_id or document.session_id or name
    reader = _Reader()
    for number, step in enumerate(document.steps, start=1):
        reader.read(step, number)
    agent = document.agent
    return Trajectory(
        task_id=document.session_id or name,
        rollout_id=identity,
        group_id=document.session_id or name,
        tree=reader.tree,
        turns=tuple(reader.turns),
        messages=tuple(reader.messages),
        patch="",
        outcome=Outcome.GRADER_ERROR,
        reward=None,
        error=f"not graded: {agent.name} {agent.version} wrote this rollout, and ATIF holds no grade",
        sampler=Sampler(agent=agent.name, engine=ENGINE, trainable=reader.tree.sampled_tokens > 0),
        started_at=_started_at(document),
        tools=tuple(_tool(tool) for tool in agent.tool_definitions or ()),
        calls=tuple(reader.calls),
        notes={"atif": _notes(document, schema)},
    )


class _Reader:
    """Reads steps in their order."""

    def __init__(self) -> None:
        self.tree = TokenTree()
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        self.calls: list[Call] = []
        self._children: dict[int | None, list[int]] = {}

    def read(self, step: Step, number: int) -> None:
        results = step.observation.results if step.observation is not None else []
        answers: list[Message] = []
        for result in results:
            if result.content is None:  # it only refers to a sub-agent
                continue
            answer: Message = {"role": "user", "content": text_of(result.content)}
            if result.source_call_id is not None:
                answer |= {"role": "tool", "tool_call_id": result.source_call_id}
            answers.append(answer)
        if step.source == "agent":
            self.messages.append(_reply(step))
            if not step.is_copied_context:
                self._add_turn(step, number, [answer["content"] for answer in answers])
        else:
            self.messages.append({"role": step.source, "content": text_of(step.message)})
        self.messages.extend(answers)

    def _add_turn(self, step: Step, number: int, answers: Sequence[str]) -> None:
        node = None if step.metrics is None else self._sample(step.metrics, step, number)
        self.turns.append(
            Turn(
                index=len(self.turns),
                node=node,
                reply=text_of(step.message),
                action="\n".join(map(_action, step.tool_calls or ())) or None,
                exit_code=None,
                observation="\n".join(answers),
                seconds=0.0,
            )
        )
        if step.metrics is not None:
            metrics = step.metrics
            call = Call(
                index=len(self.calls),
                node=node,
                purpose="main",
                fork=None,
                prompt_tokens=metrics.prompt_tokens or len(metrics.prompt_token_ids or ()),
                sampled_tokens=metrics.completion_tokens or len(metrics.completion_token_ids or ()),
                seconds=0.0,
            )
            self.calls.append(call)

    def _sample(self, metrics: Metrics, step: Step, number: int) -> int | None:
        """Add a reply to the tree and return its node; None: its exact tokens are not known."""
        prompt, completion, logprobs = (
            metrics.prompt_token_ids,
            metrics.completion_token_ids,
            metrics.logprobs,
        )
        if not prompt or not completion or logprobs is None or (step.llm_call_count or 1) != 1:
            return None
        if len(logprobs) != len(completion):
            raise AtifError(
                f"step {number} has {len(completion)} `completion_token_ids` but {len(logprobs)} `logprobs`: "
                "give each token its log-probability, or delete `logprobs`"
            )
        reply = Node(
            parent=self._add_prompt(np.array(prompt, np.int32)),
            tokens=np.array(completion, np.int32),
            sampled=True,
            logprobs=np.array(logprobs, np.float32),
            version=np.full(len(completion), UNKNOWN_VERSION, np.int32),
            turn=len(self.turns),
        )
        return self._append(reply)

    def _add_prompt(self, tokens: Int32) -> int | None:
        """Return the node that ends a path of these tokens; nodes that are a prefix of them are shared."""
        parent, start = None, 0
        while (child := self._continuing(parent, tokens[start:])) is not None:
            parent, start = child, start + len(self.tree.nodes[child].tokens)
        if start == len(tokens):
            return parent
        return self._append(
            Node(
                parent=parent,
                tokens=tokens[start:].copy(),
                sampled=False,
                logprobs=np.zeros(0, np.float32),
                version=np.zeros(0, np.int32),
                turn=len(self.turns),
            )
        )

    def _continuing(self, parent: int | None, tokens: Int32) -> int | None:
        for child in self._children.get(parent, ()):
            own = self.tree.nodes[child].tokens
            if np.array_equal(own, tokens[: len(own)]):
                return child
        return None

    def _append(self, node: Node) -> int:
        index = self.tree.append(node)
        self._children.setdefault(node.parent, []).append(index)
        return index


def _reply(step: Step) -> Message:
    message: Message = {"role": "assistant", "content": text_of(step.message)}
    if step.reasoning_content:
        message["reasoning_content"] = step.reasoning_content
    if step.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {"name": call.function_name, "arguments": json.dumps(call.arguments)},
            }
            for call in step.tool_calls
        ]
    return message


def _action(call: ToolCall) -> str:
    command = call.arguments.get("command")
    if isinstance(command, str):
        return f"{call.function_name}: {command}"
    return f"{call.function_name} {json.dumps(call.arguments, ensure_ascii=False)}"


def _tool(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's specification without OpenAI's envelope."""
    function = definition.get("function")
    return function if isinstance(function, dict) else definition


def _started_at(document: Document) -> float | None:
    first = next((step.timestamp for step in document.steps if step.timestamp), None)
    if first is None:
        return None
    try:
        return datetime.fromisoformat(first.replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise AtifError(f"the timestamp {first!r} is not ISO 8601: fix the file, or delete it") from None


def _notes(document: Document, schema: str) -> dict[str, Any]:
    """Return what no field of a trajectory holds."""
    notes: dict[str, Any] = {
        "schema_version": schema,
        "agent_version": document.agent.version,
        "model_name": document.agent.model_name,
        "notes": document.notes,
        "final_metrics": document.final_metrics,
        "extra": document.extra,
        "subagents": len(document.subagent_trajectories or ()) or None,
    }
    return {name: value for name, value in notes.items() if value is not None}
