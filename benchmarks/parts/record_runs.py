"""Record runs of Hone's bash agent whose rollouts share prefixes in four ways.

    linear          each turn extends the last one; rollouts of a group share their prompt
    cut             `agent.context.policy = "head_tail"` omits turns from the middle of long conversations
    short thoughts  `drop_thinking` omits the reasoning of earlier replies: each turn is a branch
    long thoughts   the same with more turns

Agent, sandboxes, observations, context policies, token trees and store are those of any run. Only the replies
come from a script: a model small enough for this machine would not act for twenty turns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone.config import RunSettings, resolve
from hone.launch.runtime import open_context, open_runtime
from hone.launch.train import make_pipeline
from hone.policy.chat import Chat
from hone.policy.engine import Completion, Finish, Sampling, check_prompt
from hone.policy.model import load_tokenizer, make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.attempts import EpisodeRollouts
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.tasks.sources import load_splits
from hone.types import Int32

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
COMMANDS = (
    "ls",
    "cat -n *.py | head -40",
    "grep -n 'def ' *.py",
    "python -m pytest -q 2>&1 | tail -5",
    "git log --stat | head -12",
    "grep -n return *.py | head -20",
    "wc -l *.py",
)
THOUGHTS = (
    "The listing shows where the function is defined, so its callers come next.",
    "The output agrees with the issue: the loop ends one element too early.",
    "Before any change, a look at the tests that are there already.",
    "The value is computed twice, and only the second time from the right argument.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    context: str = "none"  # `agent.context.policy`
    context_tokens: int = 16384
    prompts: str = "default"  # `agent.prompts`: "tiny" has a prompt of a few words
    rollouts: int
    turns: int
    thoughts: int = 0  # sentences of reasoning in each reply


CASES = (
    Case(name="linear", prompts="tiny", rollouts=8, turns=8),
    Case(name="cut", context="head_tail", context_tokens=2200, rollouts=3, turns=20, thoughts=2),
    Case(name="short thoughts", context="drop_thinking", rollouts=4, turns=6, thoughts=2),
    Case(name="long thoughts", context="drop_thinking", rollouts=2, turns=25, thoughts=1),
)


class ScriptedEngine:
    """Replies with reasoning and the next command, then submits; each token has the log-probability -1."""

    version = 0

    def __init__(self, tokenizer: Any, case: Case) -> None:
        self.context_tokens = case.context_tokens
        self._tokenizer = tokenizer
        self._case = case
        self._scripts: dict[str, Iterator[str]] = {}

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        check_prompt(prompt_ids, len(self._tokenizer), self.context_tokens)
        script = self._scripts.setdefault(session, self._script(len(self._scripts)))
        text = next(script)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), sampling.stop_token_ids[0]]
        return Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -1.0, np.float32),
            version=np.zeros(len(ids), np.int32),
            finish=Finish.STOP,
        )

    def _script(self, number: int) -> Iterator[str]:
        """Yield the replies of a rollout; each rollout begins elsewhere in the lists."""
        thoughts = itertools.cycle(THOUGHTS[number % len(THOUGHTS) :] + THOUGHTS[: number % len(THOUGHTS)])
        for turn in range(self._case.turns):
            reasoning = " ".join(itertools.islice(thoughts, self._case.thoughts))
            command = COMMANDS[(number + turn) % len(COMMANDS)]
            yield f"<think>\n{reasoning}\n</think>\n\nTurn {turn}.\n\n```bash\n{command}\n```"
        yield "Done.\n\n```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"

    async def release(self, session: str) -> None:
        self._scripts.pop(session, None)


def record(folder: Path, case: Case) -> Path:
    """Record one run below `folder`; return its directory."""
    run_dir = folder / case.name.replace(" ", "-")
    asyncio.run(_record(run_dir, case))
    return run_dir


async def _record(run_dir: Path, case: Case) -> None:
    settings = _settings(run_dir, case)
    task = load_splits(settings.tasks).train[0]
    model = make_tiny(_texts(task.problem), run_dir / "tokenizer", TinyModelSettings(layers=1))
    tokenizer = load_tokenizer(model)
    renderer = make_renderer(tokenizer, "qwen3")
    engine = ScriptedEngine(tokenizer, case)
    sampling = Sampling(max_tokens=settings.sampling.max_tokens)

    def new_chat(rollout_id: str, seed: int) -> Chat:
        return Chat(engine, renderer, sampling, session=rollout_id)  # pyright: ignore[reportArgumentType]

    with Ledger.open(run_dir) as ledger:
        async with (
            open_runtime(settings) as runtime,
            open_context(runtime, settings, settings.agent, new_chat) as context,
        ):
            rollouts = EpisodeRollouts(context, Store(run_dir / "rollouts"), groups_per_step=1)
            pipeline = make_pipeline(settings, rollouts, ledger, [task])
            async with pipeline.running(0):
                await pipeline.collect(0)


def _settings(run_dir: Path, case: Case) -> RunSettings:
    texts = {"run_dir": run_dir, "agent.prompts": case.prompts, "agent.context.policy": case.context}
    numbers = {
        "agent.turn_limit": case.turns + 1,
        "engine.context_tokens": case.context_tokens,
        "rollout.group_size": case.rollouts,
        "rollout.replace_constant_groups": 0,
        "sampling.max_tokens": 128,
    }
    quoted = {name: f'"{text}"' for name, text in texts.items()}
    return resolve(RECIPE, [f"{name}={value}" for name, value in (quoted | numbers).items()])


def _texts(problem: str) -> list[str]:
    """Return what the tokenizer learns its pieces from."""
    prompts = Path(__file__).parents[2] / "hone" / "agents" / "prompts" / "default.yaml"
    return [problem, prompts.read_text(), *COMMANDS, *THOUGHTS] * 2
