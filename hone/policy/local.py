# pyright: reportUnknownMemberType=false
"""The `local` engine: a transformers model in this process, on the trainer's own weights.

    generate() --queue--> worker thread: admit, step, step, ... --future--> generate()

Requests are batched continuously: each joins once a row is free and leaves when it finishes. Keys and values
of a conversation are kept between its turns, and a common prefix of prompts is computed once. Invariant: only
the worker thread accesses the batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hone.policy.batch import Batch, DecodeRow
from hone.policy.engine import Completion, EngineError, Sampling, check_prompt, check_scored
from hone.policy.scoring import ScoreRequest, next_batch, score_batch
from hone.policy.settings import LocalEngineSettings
from hone.types import Float32, Int32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Without the lock a concurrent caller would read this caller's limit as the global one.
_lock = threading.Lock()


def use_threads(count: int) -> None:
    """Make tensor operations of this thread use `count` threads; other threads keep their number."""
    with _lock:
        # The query also initialises this thread; done later, that would undo the limit.
        previous = torch.get_num_threads()
        torch.set_num_threads(count)
        # New threads get the number that was set last, so another thread sets the old number again.
        restorer = threading.Thread(target=torch.set_num_threads, args=(previous,))
        restorer.start()
        restorer.join()


@dataclass(slots=True, eq=False)
class _Command:
    """An action for the worker thread."""

    action: Callable[[], None]
    when_idle: bool  # wait until no request runs
    done: Future[None] = field(default_factory=Future[None])


class LocalEngine:
    """Samples from `model` in evaluation mode, without a copy of its weights.

    Around an optimiser step on these weights call `pause`, `set_version`, `resume`; the model may be in
    training mode while paused. `load_weights` gives new ones to an engine that has weights of its own. The
    same prompt, weights and seed give the same reply, except for a draw within the rounding error (about
    1e-6) that the batch size causes in the logits.
    """

    def __init__(self, model: PreTrainedModel, settings: LocalEngineSettings) -> None:
        self.model = model.eval()
        self._settings = settings
        self._vocab_size: int = model.config.vocab_size
        self._batch = Batch(model, settings)
        self._wake = threading.Condition()
        self._waiting: list[tuple[DecodeRow, Future[Completion]]] = []
        self._running: dict[int, tuple[DecodeRow, Future[Completion]]] = {}
        self._scoring: list[ScoreRequest] = []
        self._commands: list[_Command] = []
        self._paused = False
        self._closing = False
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="local-engine", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def context_tokens(self) -> int:
        return self._settings.context_tokens

    @property
    def version(self) -> int:
        return self._batch.version

    async def generate(
        self, prompt_ids: Sequence[int] | Int32, sampling: Sampling, *, session: str
    ) -> Completion:
        """Sample one reply (see `Engine.generate`).

        Raises ContextOverflow, EngineError, and ValueError for an empty prompt or an id out of range.
        """
        prompt = check_prompt(prompt_ids, self._vocab_size, self.context_tokens)
        row = DecodeRow(
            session=session,
            sampling=sampling,
            tokens=prompt.tolist(),
            prompt_length=len(prompt),
            limit=min(sampling.max_tokens, self.context_tokens - len(prompt)),
        )
        future: Future[Completion] = Future()
        with self._wake:
            self._require_open()
            self._waiting.append((row, future))
            self._wake.notify()
        return await asyncio.wrap_future(future)

    async def score(self, token_ids: Sequence[int] | Int32, start: int) -> Float32:
        """Return log-probabilities of tokens (see `Engine.score`), a batch between two steps of replies."""
        tokens = check_scored(token_ids, start, self._vocab_size, self.context_tokens)
        request = ScoreRequest(tokens=tokens, start=start)
        with self._wake:
            self._require_open()
            self._scoring.append(request)
            self._wake.notify()
        return await asyncio.wrap_future(request.done)

    async def release(self, session: str) -> None:
        await self._command(lambda: self._batch.sessions.drop(session))

    async def set_version(self, version: int) -> None:
        """Drop every cached key and value after a weight update; mark new tokens with `version`.

        Requests in flight continue with the new weights; the keys and values of their tokens are recomputed.
        """
        await self._command(lambda: self._change_version(version))

    async def load_weights(self, load: Callable[[], None], version: int, *, partial: bool) -> None:
        """Call `load`, which changes the model's weights, between two steps; mark new tokens with `version`.

        With `partial`, replies under way go on with the new weights; else they end first, and new requests
        wait.
        """

        def change() -> None:
            load()
            self._change_version(version)

        if partial:
            await self._command(change)
            return
        await self.pause()
        try:
            await self._command(change)
        finally:
            await self.resume()

    async def pause(self) -> None:
        with self._wake:
            self._require_open()
            self._paused = True
        await self._command(lambda: None, when_idle=True)

    async def resume(self) -> None:
        with self._wake:
            self._require_open()
            self.model.eval()
            self._paused = False
            self._wake.notify()

    async def health(self) -> None:
        with self._wake:
            self._require_open()

    async def close(self) -> None:
        """Stop; waiting and running requests fail with EngineError. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _require_open(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the local engine has stopped: {self._failure}") from self._failure
        if self._closing:
            raise EngineError("the local engine is closed")

    async def _command(self, action: Callable[[], None], *, when_idle: bool = False) -> None:
        """Run `action` on the worker thread between two steps, or once no request runs any more."""
        command = _Command(action, when_idle)
        with self._wake:
            self._require_open()
            self._commands.append(command)
            self._wake.notify()
        await asyncio.wrap_future(command.done)

    # --- the worker thread ---

    def _work(self) -> None:
        try:
            try:
                if self._settings.threads is not None:
                    use_threads(self._settings.threads)
            finally:
                self._started.set()
            with torch.inference_mode():
                while self._prepare_step():
                    self._score()
                    self._batch.step()
                    self._deliver()
            failure: BaseException = EngineError("the local engine was closed")
        except BaseException as error:  # any error must reach every waiting caller
            failure = self._failure = error
        self._fail_all(failure)

    def _prepare_step(self) -> bool:
        """Wait for work and do everything except the step; return False when the engine closes."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            if self._closing:
                return False
            self._drop_cancelled()
            commands = [each for each in self._commands if not (each.when_idle and self._running)]
            self._commands = [each for each in self._commands if each not in commands]
        for command in commands:  # without the lock: loading weights takes a while
            self._obey(command)
        with self._wake:
            candidates = [] if self._paused else list(self._waiting)
        if candidates:
            self._admit(candidates)
        return True

    def _obey(self, command: _Command) -> None:
        if not command.done.set_running_or_notify_cancel():
            return
        try:
            command.action()
        except BaseException as error:
            command.done.set_exception(error)
            raise
        command.done.set_result(None)

    def _has_work(self) -> bool:
        can_admit = bool(self._waiting) and not self._paused
        can_score = bool(self._scoring) and not self._paused
        return bool(self._closing or self._commands or self._running or can_admit or can_score)

    def _score(self) -> None:
        """Score one batch of the requests that wait."""
        with self._wake:
            self._scoring = [request for request in self._scoring if not request.done.cancelled()]
            if self._paused or not self._scoring:
                return
            batch = next_batch(self._scoring, self._settings.prefill_tokens)
            chosen = {id(request) for request in batch}
            self._scoring = [request for request in self._scoring if id(request) not in chosen]
        running = [request for request in batch if request.done.set_running_or_notify_cancel()]
        try:
            self._require_evaluation_mode()
            scores = score_batch(self.model, running) if running else []
        except BaseException as error:  # of any kind; it must reach these callers, and ends the engine
            for request in running:
                request.done.set_exception(EngineError(f"the local engine has stopped: {error}"))
            raise
        for request, values in zip(running, scores, strict=True):
            request.done.set_result(values)

    def _admit(self, candidates: list[tuple[DecodeRow, Future[Completion]]]) -> None:
        self._require_evaluation_mode()
        futures = {id(row): future for row, future in candidates}
        taken = self._batch.admit([row for row, _ in candidates])
        ids = {id(row) for row in taken}
        with self._wake:
            self._waiting = [entry for entry in self._waiting if id(entry[0]) not in ids]
        self._running.update({id(row): (row, futures[id(row)]) for row in taken})
        self._deliver()

    def _require_evaluation_mode(self) -> None:
        if self.model.training:
            raise EngineError(
                "the model is in training mode: pause the engine before training and resume it after"
            )

    def _deliver(self) -> None:
        for row, future in list(self._running.values()):
            finish = row.finish()
            if finish is None:
                continue
            self._batch.remove(row)
            del self._running[id(row)]
            if future.set_running_or_notify_cancel():
                future.set_result(row.completion(finish))

    def _drop_cancelled(self) -> None:
        self._waiting = [entry for entry in self._waiting if not entry[1].cancelled()]
        for row, future in list(self._running.values()):
            if future.cancelled():
                self._batch.remove(row)
                del self._running[id(row)]

    def _change_version(self, version: int) -> None:
        again = self._batch.set_version(version)
        with self._wake:
            self._waiting = [*(self._running.pop(id(row)) for row in again), *self._waiting]

    def _fail_all(self, failure: BaseException) -> None:
        with self._wake:
            self._closing = True
            futures: list[Future[Any]] = [command.done for command in self._commands]
            futures += [request.done for request in self._scoring]
            futures += [future for _, future in (*self._waiting, *self._running.values())]
            self._waiting, self._scoring, self._commands = [], [], []
            self._running.clear()
        for future in futures:
            if future.set_running_or_notify_cancel():
                error = EngineError(f"the local engine has stopped: {failure}")
                error.__cause__ = failure
                future.set_exception(error)
