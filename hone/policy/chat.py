"""The policy as agents see it: messages in, a reply out, every token recorded as the engine saw it.

    messages -> Transcript.prompt -> Engine.generate -> Transcript.add_reply -> Reply

Invariant: the tree's path to a reply is the engine's prompt, and the reply's node holds the engine's ids and
log-probabilities; nothing is encoded twice.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

from hone.policy.engine import Engine, Finish, Sampling, derive_seed
from hone.policy.rendering import ChatRenderer
from hone.policy.reply import CallKind, Reply, ToolSpec
from hone.policy.transcript import Fork, Transcript
from hone.types import Call, Message, TokenTree


class Chat:
    """One conversation with the policy.

    `session` is its id at the engine. The renderer's stop tokens are added to those of `sampling`; each reply
    gets its own seed, derived from the sampling seed.
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, sampling: Sampling, *, session: str) -> None:
        stop = dict.fromkeys((*sampling.stop_token_ids, *renderer.get_stop_token_ids()))
        self._engine = engine
        self._sampling = dataclasses.replace(sampling, stop_token_ids=tuple(stop))
        self._transcript = Transcript(renderer)
        self._session = session
        self._requests = 0
        self.calls: list[Call] = []

    @property
    def tree(self) -> TokenTree:
        return self._transcript.tree

    @property
    def forks(self) -> Counter[Fork]:
        """Number of forks of the tree, by reason."""
        return self._transcript.forks

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for a whole reply."""
        return self._engine.context_tokens - self._sampling.max_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        """Return the length of the prompt for these messages, in tokens; changes nothing."""
        return len(self._transcript.prompt(messages, tools).tokens)

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        """Sample the reply that follows `messages`.

        A truncated reply has no stop token; the next prompt adds one as a rendered token, never trained on. A
        failed call leaves the tree unchanged. Raises ContextOverflow, EngineError, and ValueError
        when the last message is the assistant's.
        """
        started = time.monotonic()
        prompt = self._transcript.prompt(messages, tools)
        sampling = dataclasses.replace(self._sampling, seed=derive_seed(self._sampling.seed, self._requests))
        self._requests += 1
        completion = await self._engine.generate(prompt.tokens, sampling, session=self._session)
        placed = self._transcript.add_reply(
            prompt, completion.token_ids, completion.logprobs, completion.version, purpose
        )
        call = Call(
            index=len(self.calls),
            node=placed.reply.node,
            purpose=purpose,
            fork=placed.fork,
            prompt_tokens=len(prompt.tokens),
            sampled_tokens=len(completion.token_ids),
            seconds=time.monotonic() - started,
        )
        self.calls.append(call)
        return dataclasses.replace(
            placed.reply,
            truncated=completion.finish is not Finish.STOP,
            prompt_tokens=call.prompt_tokens,
            sampled_tokens=call.sampled_tokens,
        )

    async def close(self) -> None:
        """End the conversation and free its KV cache."""
        await self._engine.release(self._session)
