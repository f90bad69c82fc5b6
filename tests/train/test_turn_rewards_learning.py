"""A judge that likes a certain command, and nothing else to learn from: the policy comes to choose it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hone.agents import AgentRun
from hone.grading.judge import Judge
from hone.grading.settings import JudgeSettings
from hone.outcomes import Outcome
from hone.policy.reply import Reply
from hone.rollout.scoring import Scorers, open_scoring
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.step_wise import StepWiseSettings
from hone.train.loop import to_samples
from hone.train.settings import OptimizerSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer
from hone.types import Message, Node, Task, TokenTree, Trajectory, Turn, Verdict
from tests.rollout.real import tasks
from tests.train.examples import model_of, tiny_model
from tests.train.trajectories import rendered, trajectory

pytestmark = pytest.mark.model
LIKED = 16  # commands below this are the judge's favourites
PROMPT = [1, 2, 3]
SETTINGS = {
    "step_wise": StepWiseSettings(),
    "grpo": GrpoSettings(reward="final"),
}


class LikesLowNumbers:
    """A conversation with a judge that looks at the number of the command."""

    max_prompt_tokens = 1

    def measure(self, messages: Sequence[Message]) -> int:
        return 0

    async def reply(self, messages: list[Message]) -> Reply:
        command = re.findall(r"^\| command (\d+)$", messages[-1]["content"], re.MULTILINE)[-1]
        mark = "\\boxed{+1}" if int(command) < LIKED else "\\boxed{-1}"
        return Reply(content=f"I have looked. {mark}", node=None)

    async def close(self) -> None: ...


@torch.no_grad()
def say(trainer: Trainer, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each prompt [n, L], and its log-probability; [n] each."""
    every = torch.log_softmax(model_of(trainer)(input_ids=prompts, use_cache=False).logits[:, -1], -1)
    tokens = torch.multinomial(every.exp(), 1)
    return tokens[:, 0], every.gather(-1, tokens)[:, 0]


def talk(trainer: Trainer, rollouts: int) -> tuple[list[list[int]], list[list[float]]]:
    """Two tokens of each rollout, each the number of a command, and their log-probabilities."""
    prompts = torch.tensor([PROMPT] * rollouts)
    first, first_logprobs = say(trainer, prompts)
    second, second_logprobs = say(trainer, torch.cat([prompts, first[:, None]], 1))
    logprobs = torch.stack([first_logprobs, second_logprobs], 1)
    return torch.stack([first, second], 1).tolist(), logprobs.tolist()


def turn_of(tree: TokenTree, index: int, token: int, logprob: float) -> Turn:
    node = Node(
        parent=len(tree.nodes) - 1,
        tokens=np.array([token], np.int32),
        sampled=True,
        logprobs=np.array([logprob], np.float32),
        version=np.zeros(1, np.int32),
        turn=index,
    )
    return Turn(
        index=index,
        node=tree.append(node),
        reply="",
        action=f"command {token}",
        exit_code=0,
        observation="",
        seconds=0.0,
    )


async def roll_out(scorers: Scorers, name: str, tokens: list[int], logprobs: list[float]) -> Trajectory:
    """Two turns, and an outcome that is always the same."""

    async def grade(task: Task, patch: str) -> Verdict:
        raise AssertionError("no progress is measured here")

    run = AgentRun(rollout_id=name)
    tree = TokenTree([rendered(None, PROMPT)])
    async with open_scoring(scorers, tasks(1)[0], run, 1, grade) as scoring:
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            await run.record(turn_of(tree, index, token, logprob))
        made = trajectory(name, outcome=Outcome.UNRESOLVED, tree=tree)
        return await scoring.close(dataclasses.replace(made, turns=tuple(run.turns)))


def chance_of_the_liked(trainer: Trainer) -> float:
    with torch.no_grad():
        logits = model_of(trainer)(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    return float(torch.softmax(logits, -1)[:LIKED].sum())


@pytest.mark.parametrize("name", SETTINGS)
def test_judge_rewards_raise_the_probability_of_liked_actions(name: str) -> None:
    settings = TrainSettings(
        steps=6, algorithm=SETTINGS[name], optimizer=OptimizerSettings(lr=3e-3, max_grad_norm=1e9)
    )
    torch.manual_seed(0)
    trainer = policy_trainer(tiny_model(), settings, temperature=1.0)
    scorers = Scorers(judge=Judge(lambda name, seed: LikesLowNumbers(), JudgeSettings(enabled=True)))
    before = chance_of_the_liked(trainer)

    async def collect(step: int) -> list[Trajectory]:
        tokens, logprobs = talk(trainer, 16)
        every = enumerate(zip(tokens, logprobs, strict=True))
        return [await roll_out(scorers, f"s{step}-{i}", *said) for i, said in every]

    for step in range(settings.steps):
        batch = asyncio.run(collect(step))
        assert {t.reward for t in batch} == {-1.0}
        _, samples = to_samples(batch, settings, lambda t: False)
        trainer.step(samples)
    after = chance_of_the_liked(trainer)
    assert after > before + 0.15, (before, after)
