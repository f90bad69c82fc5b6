"""prime-rl's trainer in a thread: the order of its files, its normalisation, and AdamW, on a tiny model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel

from hone.integrations.prime_rl.files import STABLE
from hone.integrations.prime_rl.loss import loss
from hone.integrations.prime_rl.wire import MicroBatch, decode


def sequence_logprobs(model: PreTrainedModel, micro_batch: MicroBatch) -> list[torch.Tensor]:
    """The log-probability of each token of each sequence, shifted as prime-rl does."""
    result: list[torch.Tensor] = []
    at = 0
    for length in micro_batch.sequence_lengths:
        ids = torch.tensor(micro_batch.input_ids[at : at + length])[None]
        temperature = micro_batch.temperatures[at]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / temperature
        own = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
        result.append(torch.cat([torch.zeros(1), own]))
        at += length
    return result


def batch_loss(
    model: PreTrainedModel, micro_batches: list[MicroBatch], kwargs: dict[str, Any]
) -> torch.Tensor:
    """The loss of all micro-batches, divided by the number of trained tokens."""
    total, trained = torch.zeros(()), 0
    for each in micro_batches:
        columns = (each.inference_logprobs, each.advantages, each.rl_weights)
        inference, advantages, weights = (
            torch.tensor(column).split(each.sequence_lengths) for column in columns
        )
        masks = torch.tensor(each.loss_mask).split(each.sequence_lengths)
        for i, own in enumerate(sequence_logprobs(model, each)):
            mask = masks[i] & (weights[i] != 0)
            trained += int(mask.sum())
            if mask.any():
                inputs = SimpleNamespace(
                    trainer_logprobs=own,
                    inference_logprobs=inference[i],
                    advantages=advantages[i],
                    loss_mask=mask,
                    loss_weights=weights[i],
                )
                total = total + loss(inputs, **kwargs).loss
    return total / max(1, trained)


class StandIn:
    """Trains every batch from step `first` on, until the block ends."""

    def __init__(
        self, model: PreTrainedModel, config: dict[str, Any], *, ranks: int = 1, first: int = 1
    ) -> None:
        self.model = model
        self.losses: list[float] = []
        self.error: BaseException | None = None
        self._config = config
        self._out = Path(config["output_dir"])
        self._ranks = ranks
        self._step = first
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Generator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._broadcast(self._step - 1)
            optim = self._config["optim"]
            optimizer = torch.optim.AdamW(
                self.model.parameters(),
                lr=optim["lr"],
                betas=(optim["betas1"], optim["betas2"]),
                weight_decay=optim["weight_decay"],
            )
            while (batch := self._receive()) is not None:
                value = batch_loss(self.model, batch, self._config["loss"]["kwargs"])
                value.backward()
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), optim["max_norm"])
                optimizer.step()
                optimizer.zero_grad()
                self.losses.append(value.item())
                self._broadcast(self._step)
                self._log({"optim/lr": optim["lr"], "optim/grad_norm": float(norm)})
                self._log({"loss/mean": value.item() / len(batch), "entropy/all/mean": 1.5})
                self._step += 1
        except BaseException as error:
            self.error = error

    def _receive(self) -> list[MicroBatch] | None:
        folder = self._out / "rollouts" / f"step_{self._step}"
        paths = [folder / f"rank_{rank}.bin" for rank in range(self._ranks)]
        while not all(path.is_file() for path in paths):
            if self._stop.wait(0.002):
                return None
        return [each for path in paths for each in decode(path.read_bytes())]

    def _broadcast(self, step: int) -> None:
        folder = self._out / "broadcasts" / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        (folder / "config.json").unlink()  # prime-rl writes weights alone
        (folder / STABLE).touch()

    def _log(self, metrics: dict[str, float]) -> None:
        with (self._out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": self._step, "time": time.time(), **metrics}) + "\n")
