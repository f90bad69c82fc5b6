from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.types import Int32


@dataclass
class ScriptedEngine:
    """Answers call i with answer(i) and records prompts and completions."""

    answer: Callable[[int], Sequence[int]]
    context_tokens: int = 100_000
    version: int = 0
    fail: bool = False
    prompts: list[list[int]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        if self.fail:
            raise EngineError("scripted")
        if len(prompt_ids) >= self.context_tokens:
            raise ContextOverflow(len(prompt_ids), self.context_tokens)
        call = len(self.prompts)
        ids = np.asarray(self.answer(call), np.int32)
        stopped = len(ids) > 0 and int(ids[-1]) in sampling.stop_token_ids
        completion = Completion(
            token_ids=ids,
            logprobs=-(np.arange(len(ids), dtype=np.float32) + call + 0.5),
            version=np.full(len(ids), call, np.int32),
            finish=Finish.STOP if stopped else Finish.LENGTH,
        )
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        self.completions.append(completion)
        return completion

    async def release(self, session: str) -> None:
        self.released.append(session)

    async def set_version(self, version: int) -> None:
        self.version = version

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...

    async def close(self) -> None: ...
