"""Random conversations between an agent and a scripted policy, with rewritten histories."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerFast

from hone.policy.chat import Chat
from hone.policy.engine import Sampling
from hone.policy.errors import PolicyError
from hone.policy.rendering import ChatRenderer, rendered_reply_ids
from hone.policy.reply import CallKind, Reply
from hone.train.samples import tree_samples
from hone.types import Message
from tests.policy.families import special_tokens
from tests.policy.scripted_engine import ScriptedEngine

TOOL = {
    "name": "bash",
    "description": "Runs a command.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["command"],
    },
}
TEXTS = (
    "ok",
    "  the file\n",
    "é 漢 🙂",
    "a ``` b",
    "",
    "x\n\n",
    "<b>",
    "return self",
    "{{ bos_token }} {% if %}",
)


def call(number: int, command: str = "ls") -> dict:
    return {
        "id": f"call{number:05}",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"command": command})},
    }


def sampled(renderer: ChatRenderer, said: Message, tools: Sequence[dict] | None = None) -> list[int] | None:
    """The tokens of a reply as the model would sample it, where its template can write it.

    Some templates take one call a reply; where the prompt opens the reasoning, a reply has some.
    """
    variants = [said, {**said, "reasoning_content": "because"}]
    if said.get("tool_calls"):
        variants += [{**variant, "tool_calls": said["tool_calls"][:1]} for variant in variants]
    for variant in variants:
        following: Message = user("ok")
        if variant.get("tool_calls"):
            following = {"role": "tool", "content": "ok", "tool_call_id": variant["tool_calls"][0]["id"]}
        for new in ((), (following,)):
            if (ids := rendered_reply_ids(renderer, variant, new, tools=tools)) is not None:
                return ids
    return None


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass
class Conversation:
    """An agent whose policy gives random replies."""

    tokenizer: PreTrainedTokenizerFast
    renderer: ChatRenderer
    rng: np.random.Generator
    tools: list[dict] | None = None
    nodes: list[int] = field(default_factory=list)
    refused: int = 0
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(self.draw)
        self.chat = Chat(self.engine, self.renderer, Sampling(), session="s")
        self.begin()

    def begin(self) -> None:
        self.messages = [user(self.text())]
        if self.rng.random() < 0.5 and not self.refuses(
            [system := {"role": "system", "content": "You fix bugs."}]
        ):
            self.messages.insert(0, system)

    def refuses(self, opening: list[Message]) -> bool:
        try:
            self.renderer.render_ids([*opening, user("x")], tools=self.tools, add_generation_prompt=True)
        except PolicyError:
            return True
        return False

    def text(self) -> str:
        special = special_tokens(self.tokenizer)
        return "".join(self.rng.choice([*TEXTS, str(self.rng.choice(special))], self.rng.integers(1, 4)))

    def draw(self, index: int) -> list[int]:
        """Return a reply: well-formed with reasoning and tool calls, malformed, or random tokens."""
        kind = self.rng.choice(["text", "reasoning", "calls", "calls", "damaged", "cut", "noise"])
        said: Message = {"role": "assistant", "content": str(self.rng.choice(["x", "I see.", "漢\n", ""]))}
        if kind == "reasoning" or self.rng.random() < 0.3:
            said["reasoning_content"] = "because the file"
        if kind in ("calls", "damaged") and self.tools:
            said["tool_calls"] = [call(10 * index + i, self.text()) for i in range(self.rng.integers(1, 3))]
        ids = None if kind == "noise" else sampled(self.renderer, said, self.tools)
        if ids is None:
            ids = self.rng.integers(0, len(self.tokenizer), self.rng.integers(1, 9)).tolist()
            ids += self.renderer.get_stop_token_ids()[:1] if self.rng.random() < 0.6 else []
        if kind == "damaged" and len(ids) > 2:
            del ids[int(self.rng.integers(len(ids) - 1))]
        if kind == "cut" and len(ids) > 1:
            ids = ids[: int(self.rng.integers(1, len(ids)))]
        return ids

    async def step(self, operation: str, number: int) -> None:
        """Modify the history once, request a reply and continue from it."""
        before = list(self.messages)
        self.rewrite(operation, number)
        while len(self.messages) > 1 and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages[-1]["role"] == "assistant":
            self.begin()
        messages = [{"role": "user", "content": "A title?"}] if operation == "side" else self.messages
        purpose = CallKind.AUXILIARY if operation == "side" else CallKind.MAIN
        nodes = len(self.chat.tree.nodes)
        try:
            size = self.chat.measure(messages, tools=self.tools)
            reply = await self.chat.reply(messages, tools=self.tools, purpose=purpose)
        except PolicyError:  # the template rejects this conversation
            assert len(self.chat.tree.nodes) == nodes
            self.refused += 1
            self.begin()
            return
        assert size == reply.prompt_tokens == len(self.engine.prompts[-1])
        assert reply.node is not None
        self.nodes.append(reply.node)
        self.messages = before if operation == "side" else [*self.messages, *self.heard(reply)]
        if operation == "side" and self.messages[-1]["role"] == "assistant":
            self.messages.append(user("on"))

    def heard(self, reply: Reply) -> list[Message]:
        """The reply as a client keeps it, and what it does about it."""
        said: Message = {"role": "assistant", "content": reply.content}
        if self.rng.random() < 0.4:
            said["content"] = [{"type": "text", "text": reply.content}]
        if reply.reasoning is not None and self.rng.random() < 0.5:
            said["reasoning_content"] = reply.reasoning
        if not reply.tool_calls:
            return [said, user(self.text())]
        said["tool_calls"] = [dict(item) for item in reply.tool_calls]
        results = [
            {"role": "tool", "content": self.text(), "tool_call_id": item["id"]} for item in reply.tool_calls
        ]
        return [said, *results]

    def rewrite(self, operation: str, number: int) -> None:
        messages = [dict(message) for message in self.messages]
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if operation == "fresh":
            return self.begin()
        if operation == "edit":
            messages[number % len(messages)]["content"] = "edited"
        elif operation == "compact" and len(replies) > 1:
            messages[1 : replies[-1]] = [user("(earlier messages are left out)")]
        elif operation == "rewind" and replies:
            del messages[replies[number % len(replies)] :]
        elif operation == "unthink":
            for i in replies[: 1 + number % 3]:
                messages[i]["reasoning_content"] = ""
        self.messages = messages
        return None

    def check(self) -> None:
        """Assert that sampled tokens are unchanged, keep their context and are trained on once."""
        tree, engine = self.chat.tree, self.engine
        assert len(self.nodes) == len(engine.prompts)
        for node, prompt, completion in zip(self.nodes, engine.prompts, engine.completions, strict=True):
            assert tree.tokens(node).tolist() == [*map(int, prompt), *completion.token_ids.tolist()]
            assert np.array_equal(tree.nodes[node].tokens, completion.token_ids)
            assert np.array_equal(tree.nodes[node].logprobs, completion.logprobs)
            assert np.array_equal(tree.nodes[node].version, completion.version)
        assert [i for i, node in enumerate(tree.nodes) if node.sampled] == self.nodes
        ends = {tuple(tree.tokens(i)) for i, node in enumerate(tree.nodes) if not node.sampled}
        assert len(ends) == sum(not node.sampled for node in tree.nodes)  # no context appears twice
        assert Counter(call.fork for call in self.chat.calls if call.fork) == self.chat.forks
        assert len(list(tree.branches())) <= 1 + sum(self.chat.forks.values())
        samples = tree_samples(tree, rollout_id="r", group_id="g", advantage=1.0)
        trained = sorted(
            (float(logprob), int(token), int(version))
            for sample in samples
            for token, logprob, version in zip(
                sample.tokens[sample.weight > 0],
                sample.logprobs[sample.weight > 0],
                sample.version[sample.weight > 0],
                strict=True,
            )
        )
        drawn = sorted(
            (float(logprob), int(token), int(version))
            for completion in engine.completions
            for token, logprob, version in zip(
                completion.token_ids, completion.logprobs, completion.version, strict=True
            )
        )
        assert trained == drawn
