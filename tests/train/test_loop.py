"""The main loop, in a toy run."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.outcomes import Outcome
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.train import checkpoint
from hone.train.algorithms.rloo import RlooSettings
from hone.train.batches import TrainRow
from hone.train.errors import RankError, StaleSample, StepCancelled, TrainError
from hone.train.learner import PassReport
from hone.train.loop import (
    dispose,
    recorded_steps,
    replay,
    require_fresh,
    to_samples,
    train,
)
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import (
    CheckpointSettings,
    LossSettings,
    TrainSettings,
)
from hone.train.trainer import policy_trainer
from hone.types import TokenTree, Trajectory
from tests.train.examples import model_of, tiny_model, tokenizer
from tests.train.toy_run import Crash, ToyRun, settings_of
from tests.train.trajectories import rendered, trajectory
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.model


def live(
    run_dir: Path, settings: TrainSettings, crash: Callable[[str, int], None] = lambda *_: None
) -> ToyRun:
    run = ToyRun(run_dir, settings, crash)
    try:
        asyncio.run(train(run.parts))
    finally:
        run.close()
    return run


def weights(run: ToyRun) -> list[torch.Tensor]:
    return [p.detach().clone() for p in run.model.parameters()]


def test_loop_learns_and_accounts_for_every_rollout(tmp_path: Path) -> None:
    live(tmp_path, settings_of(14))
    records = read_metrics(tmp_path)
    assert [r["step"] for r in records] == list(range(14))
    start, end = records[0]["reward"], float(np.mean([r["reward"] for r in records[-2:]]))
    assert start < 0.45
    assert end > start + 0.2
    for record in records:
        assert record["logp_gap_max"] <= 1e-4
        assert (record["rollouts"], record["masked"], record["excluded"]) == (17, 1, 1)
        assert record["wait_s"] >= 0
    with Ledger.read(tmp_path) as ledger:
        balance = ledger.balance()
    assert (balance.dispatched, balance.trained, balance.masked, balance.in_flight) == (238, 210, 14, 0)
    assert balance.dropped == {"sandbox_error": 14}
    assert balance.steps == 14


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[torch.Tensor]]:
    """Return a function: the weights after four steps with a checkpoint every so many."""

    @cache
    def run(every: int) -> list[torch.Tensor]:
        return weights(live(tmp_path_factory.mktemp("whole"), settings_of(4, every)))

    return run


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("point", ["collected", "trained", "ended", "written", "checkpointed"])
def test_crashed_run_resumes_to_the_same_weights(
    tmp_path: Path,
    point: str,
    every: int,
    undisturbed: Callable[[int], list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(4, every)
    expected = undisturbed(every)
    at = 3 if every == 2 and point in ("written", "checkpointed") else 2  # step 2 has no checkpoint then

    def crash(where: str, step: int) -> None:
        if (where, step) == (point, at):
            monkeypatch.undo()
            raise Crash

    def mark(folder: Path) -> None:
        mark_complete(folder)
        crash("written", checkpoint.read_state(folder).step)

    mark_complete = checkpoint._mark_complete
    monkeypatch.setattr(checkpoint, "_mark_complete", mark)
    with pytest.raises(Crash):
        live(tmp_path / "broken", settings, crash)
    resumed = live(tmp_path / "broken", settings)
    assert all(torch.equal(a, b) for a, b in zip(expected, weights(resumed), strict=True))
    with Ledger.read(tmp_path / "broken") as ledger:
        balance = ledger.balance()
        assert ledger.last_step == 3
    assert (balance.trained, balance.masked, balance.in_flight, balance.steps) == (60, 4, 0, 4)
    assert [r["step"] for r in read_metrics(tmp_path / "broken")] == [0, 1, 2, 3]


@pytest.mark.parametrize("restarts", [1, 0])
def test_run_goes_on_from_its_checkpoint_after_a_rank_error(
    tmp_path: Path,
    restarts: int,
    undisturbed: Callable[[int], list[torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The learner of this process stands in for one on ranks."""
    run = ToyRun(tmp_path / "broken", settings_of(4, 2, restarts=restarts))
    learner = run.trainer.learner
    compute, start, calls = learner.forward_backward, copy.deepcopy(run.model.state_dict()), 0

    def fail_in_step_3(rows: Sequence[TrainRow]) -> PassReport:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise RankError("rank 1 was killed")
        return compute(rows)

    monkeypatch.setattr(learner, "forward_backward", fail_in_step_3)
    monkeypatch.setattr(learner, "restart", lambda: run.model.load_state_dict(start))
    if restarts == 0:
        with pytest.raises(RankError, match="rank 1"):
            asyncio.run(train(run.parts))
    else:
        asyncio.run(train(run.parts))
        assert all(torch.equal(a, b) for a, b in zip(undisturbed(2), weights(run), strict=True))
        balance = run.ledger.balance()
        assert (balance.trained, balance.masked, balance.in_flight, balance.steps) == (60, 4, 0, 4)
    run.close()


def test_next_step_collects_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[int | None] = []
    collecting = threading.Event()

    def note(where: str, step: int) -> None:
        if (where, step) == ("collected", 1):
            committed.append(run.ledger.last_step)
            collecting.set()

    def mark(folder: Path) -> None:
        assert collecting.wait(LIMIT_S)
        mark_complete(folder)

    mark_complete = checkpoint._mark_complete
    monkeypatch.setattr(checkpoint, "_mark_complete", mark)
    run = ToyRun(tmp_path, settings_of(2), note)
    asyncio.run(train(run.parts))
    assert committed == [None], "a step was committed before its checkpoint was complete"
    assert run.ledger.last_step == 1
    run.close()


def test_finished_run_trains_no_further(tmp_path: Path) -> None:
    settings = settings_of(2)
    first = live(tmp_path, settings)
    again = live(tmp_path, settings, crash=lambda where, _: None)
    assert again.version == 2
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(again), strict=True))
    assert len(read_metrics(tmp_path)) == 2


def test_engine_with_old_weights_stops_the_run(tmp_path: Path) -> None:
    run = ToyRun(tmp_path, settings_of(3))

    async def forget(version: int) -> None:
        run.version = 0

    run.publish = forget  # type: ignore[method-assign]
    with pytest.raises(StaleSample, match=r"versions 0 to 0 at step 1.*training is on-policy"):
        asyncio.run(train(run.parts))
    run.close()


@pytest.mark.parametrize("version", [4, 5, 6])
def test_single_token_of_other_weights_is_refused(version: int) -> None:
    credit, samples = to_samples(
        [trajectory("a"), trajectory("b", outcome=Outcome.UNRESOLVED)], TrainSettings(), lambda _: False
    )
    at = np.where(samples[0].weight > 0, 5, -1).astype(np.int32)
    at[-1] = version
    samples = [replace(s, version=at) for s in samples]
    assert credit.groups == 1
    if version == 5:
        require_fresh(samples, 5, 0)
    else:
        with pytest.raises(StaleSample):
            require_fresh(samples, 5, 0)


def test_rollout_without_sampled_tokens_is_dropped() -> None:
    batch = [
        trajectory("a"),
        trajectory("b", outcome=Outcome.CONTEXT_LIMIT, tree=TokenTree([rendered(None, [1])])),
    ]
    credit, samples = to_samples(batch, TrainSettings(), lambda _: False)
    disposals = dispose(credit, samples)
    assert {i: (d.disposition, d.reason) for i, d in disposals.items()} == {
        "a": ("trained", None),
        "b": ("dropped", "no_tokens"),
    }
    assert credit.advantages["a"] > 0  # it stays in the baseline


def test_arrival_order_of_rollouts_does_not_matter() -> None:
    batch = [trajectory(f"r{i}", reward=float(i)) for i in range(6)]
    one = to_samples(batch, TrainSettings(), lambda _: False)[1]
    two = to_samples(batch[::-1], TrainSettings(), lambda _: False)[1]
    assert [s.rollout_id for s in one] == [s.rollout_id for s in two]
    assert [s.advantage.tolist() for s in one] == [s.advantage.tolist() for s in two]


def test_cancelling_the_loop_stops_its_training_thread(tmp_path: Path) -> None:
    run = ToyRun(tmp_path, settings_of(3))
    stopped: list[type[BaseException]] = []
    step, cancel, cancelled = run.trainer.step, run.trainer.cancel, threading.Event()

    def noted_cancel() -> None:
        cancel()
        cancelled.set()

    run.trainer.cancel = noted_cancel  # type: ignore[method-assign]

    async def cancel_in_the_middle() -> None:
        loop, job = asyncio.get_running_loop(), asyncio.ensure_future(train(run.parts))

        def cancelled_step(samples: object, **more: Any) -> dict[str, float]:
            def ask(*_: object) -> None:
                loop.call_soon_threadsafe(job.cancel)
                assert cancelled.wait(LIMIT_S)

            handle = model_of(run.trainer).lm_head.register_forward_hook(ask)
            try:
                return step(samples, **more)  # type: ignore[arg-type]
            except BaseException as error:
                stopped.append(type(error))
                raise
            finally:
                handle.remove()

        run.trainer.step = cancelled_step  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(cancel_in_the_middle())
    run.close()
    assert stopped == [StepCancelled]
    resumed = live(tmp_path, settings_of(3))
    assert resumed.version == 3


def replayed(run: Path, out: Path, settings: TrainSettings) -> list[torch.Tensor]:
    """The weights after training again on the rollouts of `run`, three steps."""
    trainer = policy_trainer(tiny_model(), settings, temperature=1.0)
    with Ledger.read(run) as ledger, MetricsWriter(out, tensorboard=False) as metrics:
        path = replay(
            recorded_steps(ledger, Store(run / "rollouts")),
            settings,
            trainer=trainer,
            tokenizer=tokenizer(),
            run_dir=out,
            metrics=metrics,
            is_masked=lambda t: t.outcome is Outcome.TURN_LIMIT,
        )
    assert checkpoint.read_state(path).step == 2
    trainer.learner.close()
    return [p.detach() for p in model_of(trainer).parameters()]


def test_replay_reproduces_weights_only_with_the_same_settings(tmp_path: Path) -> None:
    settings = settings_of(3)
    expected = weights(live(tmp_path / "run", settings))

    def again(name: str, settings: TrainSettings) -> list[torch.Tensor]:
        return replayed(tmp_path / "run", tmp_path / name, settings)

    same = again("same", settings)
    assert all(torch.equal(a, b) for a, b in zip(expected, same, strict=True))
    other_settings = settings.model_copy(
        update={
            "algorithm": RlooSettings(),
            "loss": LossSettings(normalisation="constant", constant_tokens=10),
        }
    )
    other = again("other", other_settings)
    assert any(not torch.equal(a, b) for a, b in zip(expected, other, strict=True))
    assert [record["step"] for record in read_metrics(tmp_path / "other")] == [0, 1, 2]


def test_replay_with_other_passes_differs_by_rounding_only(tmp_path: Path) -> None:
    settings = settings_of(3)
    expected = weights(live(tmp_path / "run", settings))
    moved = distance(expected, [p.detach() for p in tiny_model().parameters()])
    for workers, tokens in ((1, 32), (2, 32), (3, 64)):
        batch = settings.batch.model_copy(update={"workers": workers, "micro_batch_tokens": tokens})
        other = settings.model_copy(update={"batch": batch})
        found = replayed(tmp_path / "run", tmp_path / f"{workers}-{tokens}", other)
        assert distance(expected, found) <= 1e-4 * moved


def distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm())


@pytest.mark.parametrize(
    ("steps", "every", "keep", "left"),
    [(3, 1, 2, [1, 2]), (3, 1, 9, [0, 1, 2]), (3, 2, 9, [1, 2]), (9, 2, 1, [2])],
)
def test_replay_keeps_checkpoints_like_the_run(
    tmp_path: Path, steps: int, every: int, keep: int, left: list[int]
) -> None:
    live(tmp_path / "run", settings_of(3))
    kept = CheckpointSettings(every=every, keep=keep)
    replayed(tmp_path / "run", tmp_path / "again", settings_of(steps).model_copy(update={"checkpoint": kept}))
    found = sorted(path.name for path in (tmp_path / "again" / "checkpoints").iterdir())
    assert found == [f"step-{step:06d}" for step in left]


def test_replay_needs_one_step(tmp_path: Path) -> None:
    def again(steps: Iterable[Sequence[Trajectory]]) -> Path:
        settings = settings_of(1)
        with MetricsWriter(tmp_path, tensorboard=False) as metrics:
            return replay(
                steps,
                settings,
                trainer=policy_trainer(tiny_model(), settings, temperature=1.0),
                tokenizer=tokenizer(),
                run_dir=tmp_path,
                metrics=metrics,
                is_masked=lambda t: False,
            )

    with Ledger.open(tmp_path) as ledger, pytest.raises(TrainError, match="no committed step to replay"):
        again(recorded_steps(ledger, Store(tmp_path / "rollouts")))
    step = [trajectory("a"), trajectory("b", outcome=Outcome.UNRESOLVED)]
    assert checkpoint.read_state(again([step])).step == 0
