"""Trees, trajectories and a recipe for tests of the integrations that embed Hone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hone.agents.scaffold import SUBMIT, load_scaffold
from hone.config import RunSettings
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.policy.engine import Completion, Finish, Sampling
from hone.policy.model import load_tokenizer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.types import Int32, Node, Task, TokenTree, Trajectory

SCAFFOLD = load_scaffold("tiny")
GIVE_UP = f"echo {SUBMIT}"


def rendered(parent: int | None, tokens: Iterable[int]) -> Node:
    empty = np.zeros(0, np.float32)
    return Node(
        parent=parent,
        tokens=np.array(list(tokens), np.int32),
        sampled=False,
        logprobs=empty,
        version=empty.astype(np.int32),
        turn=0,
    )


def sampled(parent: int | None, tokens: Iterable[int], version: int = 0) -> Node:
    ids = np.array(list(tokens), np.int32)
    return Node(
        parent=parent,
        tokens=ids,
        sampled=True,
        logprobs=-(ids.astype(np.float32) + 1) / 64,
        version=np.full(len(ids), version, np.int32),
        turn=0,
    )


def forked_tree() -> TokenTree:
    """P -> A -> E -> B, and P -> A -> F -> C."""
    return TokenTree(
        [
            rendered(None, [1, 2]),
            sampled(0, [3, 4], 5),
            rendered(1, [5]),
            sampled(2, [6], 6),
            rendered(1, [7, 8]),
            sampled(4, [9, 10], 7),
        ]
    )


def trajectory(tree: TokenTree | None = None, outcome: Outcome = Outcome.RESOLVED, **more: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "task_id": "task",
        "rollout_id": "g-0",
        "group_id": "g",
        "tree": tree or TokenTree(),
        "turns": (),
        "messages": (),
        "patch": "",
        "outcome": outcome,
        "reward": OUTCOME_RULES[outcome].reward,
    }
    return Trajectory(**{**fields, **more})


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Trees whose roots are rendered, as those of conversations are."""
    tree = TokenTree([rendered(None, [1])])
    for i in range(1, draw(st.integers(1, 8))):
        make = draw(st.sampled_from([rendered, sampled]))
        tokens = draw(st.lists(st.integers(0, 99), max_size=4))
        tree.append(make(draw(st.integers(0, i - 1)), tokens))
    return tree


def make_recipe(folder: Path, **more: Any) -> RunSettings:
    """Settings of rollouts on two tasks of the curriculum with the tiny prompts; makes the tokenizer."""
    model = folder / "model"
    tasks = TasksSettings(train=2, test=1, unseen=0)
    texts = [task.problem for task in generate(tasks).train] * 3
    make_tokenizer(texts, TinyModelSettings()).save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 800}')
    return RunSettings.model_validate(
        {
            "run_dir": folder / "run",
            "model": {"path": model},
            "tasks": tasks,
            "agent": {"kind": "bash", "prompts": "tiny"},
            "engine": {"kind": "local", "context_tokens": 4096},
            "sampling": {"max_tokens": 1024},
            **more,
        }
    )


class SayingPeer:
    """A peer whose engine says the same commands in every rollout, in order."""

    def __init__(self, settings: RunSettings, *commands: str) -> None:
        assert settings.model is not None
        self._tokenizer = load_tokenizer(settings.model.path)
        self._commands = commands
        self._said: dict[str, int] = {}
        self.asked: list[tuple[list[int], Sampling, str]] = []
        self.fault: Exception | None = None
        self.waits: asyncio.Event | None = None  # replies come once it is set
        self.asked_once = asyncio.Event()

    async def generate(self, prompt_ids: Int32, sampling: Sampling, *, session: str) -> Completion:
        self.asked.append((prompt_ids.tolist(), sampling, session))
        self.asked_once.set()
        if self.waits is not None:
            await self.waits.wait()
        if self.fault is not None:
            raise self.fault
        turn = self._said.get(session, 0)
        self._said[session] = turn + 1
        text = SCAFFOLD.reply(self._commands[turn])
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), sampling.stop_token_ids[0]]
        return Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -0.5, np.float32),
            version=np.full(len(ids), 3, np.int32),
            finish=Finish.STOP,
        )


def fix(task: Task) -> str:
    """The command that applies the reference patch and submits."""
    patch = task.checks.gold_patch.rstrip("\n")
    return f"git apply <<'END_OF_PATCH'\n{patch}\nEND_OF_PATCH\necho {SUBMIT}"
