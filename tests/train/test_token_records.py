"""What a training keeps of each trained token, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hone.outcomes import Outcome
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.train.batches import TrainRow
from hone.train.learner import PassReport
from hone.train.loop import recorded_steps, to_samples, train
from hone.train.metrics import read_metrics
from hone.train.token_records import TokenRecorder, read_token_rows, token_file
from hone.types import Sample
from hone.view.reader import RunReader
from hone.view.rollouts import rollout_rows
from hone.view.tokens import token_page
from tests.train.toy_run import Crash, ToyRun, settings_of

STEPS = 2


LOST = b"of an attempt that was not committed"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished run, whose process died once after it had trained step 1."""
    run_dir = tmp_path_factory.mktemp("run")

    def crash(point: str, step: int) -> None:
        if (point, step) == ("trained", 1):
            raise Crash

    with pytest.raises(Crash):
        run_to_end(run_dir, crash)
    assert token_file(run_dir, 1).is_file()
    token_file(run_dir, 1).write_bytes(LOST)
    run_to_end(run_dir)
    return run_dir


def run_to_end(run_dir: Path, crash: Callable[[str, int], None] = lambda *_: None) -> None:
    run = ToyRun(run_dir, settings_of(STEPS), crash)
    try:
        asyncio.run(train(run.parts))
    finally:
        run.close()


def samples_of(run_dir: Path, step: int) -> list[Sample]:
    """Return the samples of a step, made again from the stored rollouts."""
    with Ledger.read(run_dir) as ledger:
        batches = list(recorded_steps(ledger, Store(run_dir / "rollouts")))
    return to_samples(batches[step], settings_of(STEPS), lambda t: t.outcome is Outcome.TURN_LIMIT)[1]


@pytest.mark.parametrize("step", range(STEPS))
def test_each_trained_token_has_exactly_one_row(run_dir: Path, step: int) -> None:
    samples = [sample for sample in samples_of(run_dir, step) if sample.advantage.any()]

    assert len(samples) > 8
    for sample in samples:
        rows = read_token_rows(run_dir, step, sample.rollout_id)
        assert rows is not None
        at = np.flatnonzero(sample.weight)
        assert rows.position.tolist() == at.tolist()
        assert rows.advantage.tolist() == sample.advantage[at].tolist()
        assert rows.weight.tolist() == sample.weight[at].tolist()
        assert (rows.entropy > 0).all()
    without = [sample for sample in samples_of(run_dir, step) if not sample.advantage.any()]
    assert all(read_token_rows(run_dir, step, sample.rollout_id) is None for sample in without)


@pytest.mark.parametrize("step", range(STEPS))
def test_mismatch_of_the_rows_is_the_metric(run_dir: Path, step: int) -> None:
    gaps: list[float] = []
    for sample in samples_of(run_dir, step):
        rows = read_token_rows(run_dir, step, sample.rollout_id)
        if rows is not None:
            fresh = (rows.update == 0) & (sample.version[rows.position] == step)
            gaps += (rows.logprob.astype(np.float64) - sample.logprobs[rows.position])[fresh].tolist()

    gap = np.array(gaps)
    metrics = read_metrics(run_dir)[step]
    assert float((np.exp(gap) - 1 - gap).mean()) == pytest.approx(metrics["mismatch/k3"], abs=1e-15)
    assert float(np.abs(gap).max()) == metrics["logp_gap_max"]


def test_repeated_step_replaces_its_file(run_dir: Path) -> None:
    assert token_file(run_dir, 1).read_bytes() != LOST
    files = [path.name for path in sorted((run_dir / "tokens").iterdir())]
    assert files == ["step-000000.parquet", "step-000001.parquet"]


def test_learner_without_logprobs_leaves_no_file(tmp_path: Path, run_dir: Path) -> None:
    samples = samples_of(run_dir, 0)
    rows = [TrainRow(sample=sample, scale=sample.weight, old_logprobs=None) for sample in samples]
    report = PassReport(loss=0.0, logprobs=None, entropies=None, branch_tokens=9, unique_tokens=9)
    token_file(tmp_path, 0).parent.mkdir()
    token_file(tmp_path, 0).write_bytes(LOST)

    recorder = TokenRecorder(samples)
    recorder.add(rows, report, updates=0)
    recorder.write(tmp_path, 0)

    assert not token_file(tmp_path, 0).exists()
    assert read_token_rows(tmp_path, 0, samples[0].rollout_id) is None


def test_later_passes_over_a_token_change_nothing(tmp_path: Path, run_dir: Path) -> None:
    (sample,) = samples_of(run_dir, 0)[:1]
    row = TrainRow(sample=sample, scale=sample.weight, old_logprobs=None)
    recorder = TokenRecorder([sample])
    for update in range(2):
        values = np.full(len(row.trained), float(update), np.float32)
        report = PassReport(loss=0.0, logprobs=[values], entropies=[values], branch_tokens=9, unique_tokens=9)
        recorder.add([row], report, updates=update)
    recorder.write(tmp_path, 3)

    rows = read_token_rows(tmp_path, 3, sample.rollout_id)
    assert rows is not None
    assert (rows.logprob.tolist(), rows.update.tolist()) == ([0.0] * 6, [0] * 6)


def test_token_page_shows_what_the_trainer_recorded(run_dir: Path) -> None:
    reader = RunReader("run", run_dir)
    trained = next(
        row
        for row in rollout_rows(reader)
        if row.step == 1 and read_token_rows(run_dir, 1, row.rollout_id) is not None
    )
    page = token_page(reader, trained.directory or "")
    rows = read_token_rows(run_dir, 1, trained.rollout_id)

    assert rows is not None
    assert page.source.startswith("tokens/step-000001.parquet: first pass over each token")
    (reply,) = (node for node in page.nodes if node.sampled)
    assert reply.trainer_logprobs == tuple(rows.logprob.tolist())
    assert reply.entropies == tuple(rows.entropy.tolist())
    assert reply.advantages == tuple(rows.advantage.tolist())
    assert (reply.weights, page.trained) == ((1.0,) * 6, 6)
    assert reply.why == "trained by step 1"
