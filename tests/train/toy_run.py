"""A run with a real model, a real ledger and a real store; only the task is a toy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hone.outcomes import Outcome
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.train.in_process import InProcessLearner
from hone.train.loop import TrainRun
from hone.train.metrics import MetricsWriter
from hone.train.settings import BatchSettings, CheckpointSettings, OptimizerSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer
from hone.types import Float32, Int32, Node, TokenTree, Trajectory
from tests.train.examples import model_of, tiny_model, tokenizer
from tests.train.trajectories import rendered, trajectory

SMALL = 16  # a reply is worth the share of its tokens below this


class Crash(Exception):
    """Stands in for kill -9 at one point of a run."""


class ToyRun:
    """One process of a run: everything is built from the content of `run_dir`."""

    def __init__(
        self,
        run_dir: Path,
        settings: TrainSettings,
        crash: Callable[[str, int], None] = lambda *_: None,
        trainer: Trainer | None = None,
    ) -> None:
        """`crash` gets each point of a step, and the step. `trainer`: default: one of this process."""
        self.version = -1
        self.settings, self.crash = settings, crash
        self.ledger = Ledger.open(run_dir)
        self.store = Store(run_dir / "rollouts")
        self.metrics = MetricsWriter(run_dir, tensorboard=False)
        self.trainer = trainer or policy_trainer(tiny_model(), settings, temperature=1.0)
        self.model = tiny_model() if trainer else model_of(self.trainer)  # what the engine samples from
        self.parts = TrainRun(
            run_dir=run_dir,
            settings=settings,
            trainer=self.trainer,
            tokenizer=tokenizer(),
            publish=lambda version: self.publish(version),
            ledger=self.ledger,
            metrics=self.metrics,
            collect=self.collect,
            is_masked=lambda t: t.outcome is Outcome.TURN_LIMIT,
            on_step=lambda step, _: self.crash("ended", step),
        )
        commit = self.ledger.commit_step

        def watched_commit(step: int, disposals: object) -> None:
            crash("checkpointed", step)
            commit(step, disposals)  # type: ignore[arg-type]

        self.ledger.commit_step = watched_commit  # type: ignore[method-assign]

    async def publish(self, version: int) -> None:
        self.crash("trained", version - 1)
        if not isinstance(self.trainer.learner, InProcessLearner):
            with TemporaryDirectory() as folder:
                self.trainer.learner.export(Path(folder))
                self.model = type(self.model).from_pretrained(folder)
        self.version = version

    async def collect(self, step: int) -> Sequence[Trajectory]:
        own = [e for e in self.ledger.entries() if e.rollout_id.startswith(f"s{step}-")]
        self.ledger.drop([e.rollout_id for e in own if e.disposition is None], "superseded")
        attempt = len(own) // 17
        torch.manual_seed(step)
        trees = self.say([[index % 4 + 1, 2, 3] for index in range(16)])
        batch = [self.attempt(step, i, attempt, tree) for i, tree in enumerate([*trees, None])]
        self.crash("collected", step)
        return batch

    def attempt(self, step: int, index: int, attempt: int, tree: TokenTree | None) -> Trajectory:
        """Sixteen rollouts in four groups, some at a limit; the seventeenth has no tree and meets a fault."""
        rollout_id, group_id = f"s{step}-{index:02}-{attempt}", f"s{step}g{index % 4}"
        self.ledger.dispatch(
            rollout_id,
            group_id=group_id,
            index=index // 4,
            position=4 * step + index % 4,
            task_id="t",
            sampled_version=self.version,
        )
        if tree is None:
            self.ledger.end(rollout_id, Outcome.SANDBOX_ERROR)
            return trajectory(rollout_id, group_id=group_id, outcome=Outcome.SANDBOX_ERROR)
        reply = tree.nodes[1].tokens
        made = trajectory(
            rollout_id,
            group_id=group_id,
            outcome=Outcome.TURN_LIMIT if index == 3 else Outcome.UNRESOLVED,
            reward=float((reply < SMALL).mean()),
            tree=tree,
        )
        directory = self.store.save(made, group=index % 4, index=index // 4)
        self.ledger.end(rollout_id, made.outcome, reward=made.reward, directory=directory)
        return made

    @torch.no_grad()
    def say(self, prompts: list[list[int]]) -> list[TokenTree]:
        """Sample six tokens after each of the prompts, which are of one length."""
        ids, logprobs = torch.tensor(prompts), []
        for _ in range(6):
            every = torch.log_softmax(self.model(input_ids=ids, use_cache=False).logits[:, -1], -1)
            tokens = torch.multinomial(every.exp(), 1)
            logprobs.append(every.gather(1, tokens))
            ids = torch.cat([ids, tokens], 1)
        replies = ids[:, len(prompts[0]) :].numpy().astype(np.int32)
        return [
            TokenTree([rendered(None, prompt), self.reply(tokens, values)])
            for prompt, tokens, values in zip(prompts, replies, torch.cat(logprobs, 1).numpy(), strict=True)
        ]

    def reply(self, tokens: Int32, logprobs: Float32) -> Node:
        return Node(
            parent=0,
            tokens=tokens,
            sampled=True,
            logprobs=logprobs,
            version=np.full(len(tokens), self.version, np.int32),
            turn=0,
        )

    def close(self) -> None:
        self.metrics.close()
        self.ledger.close()


def settings_of(steps: int, every: int = 1, **more: Any) -> TrainSettings:
    return TrainSettings(
        steps=steps,
        optimizer=OptimizerSettings(lr=1e-2, schedule="linear"),
        batch=BatchSettings(mini_batches=2),
        checkpoint=CheckpointSettings(every=every),
        **more,
    )
