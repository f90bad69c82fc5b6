"""Opens the learner and the engine of a service of the Tinker API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from hone.config import RunSettings
from hone.integrations.tinker.engine import TinkerEngine
from hone.integrations.tinker.learner import TinkerLearner
from hone.integrations.tinker.service import Service
from hone.policy.engines.open import vocabulary_size
from hone.policy.settings import ModelSettings, TinkerEngineSettings
from hone.train.learner import LearnerSpec
from hone.train.loss import Objective
from hone.utils.concurrency import run_in_thread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def open_service(settings: RunSettings) -> Service:
    """Connect to the service; blocks. Raises ServiceError."""
    engine = settings.engine
    assert isinstance(engine, TinkerEngineSettings), "settings refuse another engine beside the learner"
    assert settings.model is not None, "a policy was loaded"
    return Service(engine.base_model or str(settings.model.path), timeout_s=engine.request_timeout_s)


@contextmanager
def open_service_learner(
    settings: RunSettings, model: ModelSettings, tokenizer: PreTrainedTokenizerBase, objective: Objective
) -> Iterator[TinkerLearner]:
    """Open a learner at the service of the run; blocks. `model.path` is a folder. Raises TrainError."""
    spec = LearnerSpec(
        model=model.path.resolve(),
        dtype=model.dtype,
        objective=objective,
        optimizer=settings.train.optimizer,
        passes=settings.train.batch,
        settings=settings.train,
    )
    vocabulary = vocabulary_size(model.path, tokenizer)
    learner = TinkerLearner(open_service(settings), spec, vocabulary=vocabulary, seed=settings.seed)
    try:
        yield learner
    finally:
        learner.close()


@asynccontextmanager
async def open_service_engine(
    settings: RunSettings, model: ModelSettings, tokenizer: PreTrainedTokenizerBase
) -> AsyncGenerator[TinkerEngine]:
    """Open an engine at the service of the run; it has the base model's weights. Raises EngineError."""
    engine = settings.engine
    assert isinstance(engine, TinkerEngineSettings), "only called for one"
    vocabulary = vocabulary_size(model.path, tokenizer)
    opened = await run_in_thread(lambda: TinkerEngine(open_service(settings), engine, vocabulary=vocabulary))
    try:
        yield opened
    finally:
        await opened.close()
