"""GRPO in one file: real tasks, real sandboxes, a real gradient, on two CPU cores.

    .venv/bin/python examples/grpo_in_one_file.py [--folder runs/grpo] [--steps 12] [--demonstrations 1200]

A model of half a million parameters imitates a scripted agent that is right in 40 % of the cases, and then
improves by its own rollouts: sample a group of rollouts per task, grade them by hidden tests, prefer the ones
above their group's mean. It prints reward and resolve rate of each step, and the resolve rate on held-out
tasks before and after. Minutes on two cores.

What a training of `hone train` has beyond this: a ledger of every rollout, checkpoints and resume, rollouts
that go on during a training step, corrections, several GPUs, validation. What is the same: the agent, the
sandboxes, the grader, and that exactly the sampled tokens are trained.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import hone
from hone.front_door.rollouts import RolloutSession
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.train.samples import tree_samples
from hone.types import Sample, Task, Trajectory

RECIPE = "quickstart"  # the agent's prompts, lengths and limits
GROUPS, GROUP_SIZE = 8, 8  # tasks per step, rollouts per task
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
LEARNING_RATE, MINI_BATCHES, MAX_GRAD_NORM = 3e-4, 4, 0.1


def make_start_model(folder: Path, shown: Sequence[Task], settings: dict[str, object]) -> Path:
    """Return a model that has imitated a scripted agent; continue an earlier call."""
    base = folder / "base"
    if not base.exists():  # its tokenizer knows the texts of these rollouts
        with hone.open_rollouts("demonstrator", recipe=RECIPE, progress=False) as rollouts:
            texts = [str(m["content"]) for (each,) in rollouts.run(shown[:200]) for m in each.messages]
        make_tiny(texts, base, TinyModelSettings(hidden_size=128, layers=2, initializer_range=0.05))
    own = {"run_dir": folder / "sft", "model.path": base, "demonstrations.rollouts": len(shown)}
    return hone.sft(RECIPE, settings | own).checkpoint


def group_samples(group: Sequence[Trajectory]) -> list[Sample]:
    """Return the samples of one task's rollouts; advantage = (reward - mean) / std of the group."""
    valid = [rollout for rollout in group if rollout.reward is not None]  # no infrastructure fault
    rewards = np.array([rollout.reward for rollout in valid], dtype=np.float32)
    if len(valid) < 2 or rewards.std() == 0:
        return []  # all alike: nothing to prefer
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-3)
    return [
        sample
        for rollout, advantage in zip(valid, advantages, strict=True)
        for sample in tree_samples(
            rollout.tree,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            advantage=float(advantage),
        )
    ]


def surrogate(model: torch.nn.Module, sample: Sample) -> Tensor:
    """Return the clipped objective, summed over the sampled tokens of one branch of a rollout."""
    tokens = torch.from_numpy(sample.tokens).long()  # [T]
    logits = model(tokens[None]).logits[0, :-1]  # [T - 1, vocabulary]: position t predicts token t + 1
    now = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]  # [T - 1]
    before, weight, advantage = (
        torch.from_numpy(array)[1:] for array in (sample.logprobs, sample.weight, sample.advantage)
    )
    ratio = torch.exp(now - before)
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return (torch.minimum(ratio * advantage, clipped * advantage) * weight).sum()


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, samples: list[Sample]) -> None:
    """Make one optimiser step per mini-batch; the loss is the mean over its sampled tokens."""
    random.shuffle(samples)
    for batch in np.array_split(np.arange(len(samples)), MINI_BATCHES):
        chosen = [samples[i] for i in batch]
        count = sum(float(sample.weight.sum()) for sample in chosen)
        for sample in chosen:
            (-surrogate(model, sample) / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()


def resolve_rate(rollouts: RolloutSession, tasks: Sequence[Task], seed: int) -> float:
    """Return the share of tasks that one sampled rollout resolves."""
    return float(np.mean([rollout.outcome == "resolved" for (rollout,) in rollouts.run(tasks, seed=seed)]))


def main(folder: Path, steps: int, demonstrations: int, held_out: int) -> None:
    sizes = {"train": demonstrations + steps * GROUPS, "test": held_out, "unseen": 0, "variety": 2}
    tasks = hone.load_tasks("curriculum", split="train", **sizes)
    shown, practice = tasks[:demonstrations], tasks[demonstrations:]
    test = hone.load_tasks("curriculum", split="test", **sizes)
    of_recipe = {"tasks.curriculum": "one_bug", **{f"tasks.{name}": size for name, size in sizes.items()}}
    start = make_start_model(folder, shown, of_recipe)
    with hone.open_rollouts("bash", recipe=RECIPE, model=start, progress=False) as rollouts:
        optimizer = torch.optim.AdamW(rollouts.model.parameters(), lr=LEARNING_RATE, weight_decay=0)
        print(f"before: {resolve_rate(rollouts, test, seed=1):.0%} of {held_out} held-out tasks", flush=True)
        for step in range(steps):
            chosen = practice[step * GROUPS : (step + 1) * GROUPS]
            groups = rollouts.run(chosen, samples=GROUP_SIZE, seed=step)
            samples = [sample for group in groups for sample in group_samples(group)]
            if samples:
                with rollouts.updating() as model:  # the engine samples from these weights afterwards
                    update(model, optimizer, samples)
            ended = [rollout for group in groups for rollout in group]
            reward = np.mean([rollout.reward for rollout in ended if rollout.reward is not None])
            resolved = np.mean([rollout.outcome == "resolved" for rollout in ended])
            print(f"step {step}: reward {reward:+.2f}, resolved {resolved:.0%}", flush=True)
        print(f"after: {resolve_rate(rollouts, test, seed=1):.0%} of {held_out} held-out tasks")
        rollouts.model.save_pretrained(folder / "final")
        rollouts.tokenizer.save_pretrained(folder / "final")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/grpo"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--demonstrations", type=int, default=1200)
    parser.add_argument("--held-out", type=int, default=80)
    main(**vars(parser.parse_args()))
