"""Runs in prime-rl's environment: its receiver, loader and loss read the files of Hone.

python check_checkout.py DIR: DIR holds `rollouts/step_1/rank_0.bin` and `expected.json`.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

checkout = os.environ["HONE_TEST_PRIME_RL_CHECKOUT"]
sys.path[:0] = [f"{checkout}/src", f"{checkout}/packages/prime-rl-configs/src"]
sys.modules.setdefault("wandb", types.ModuleType("wandb"))
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
    os.environ.setdefault(name, value)

from prime_rl.configs.shared import FileSystemTransportConfig  # noqa: E402
from prime_rl.configs.trainer import CustomLossConfig, TrainerConfig  # noqa: E402
from prime_rl.trainer.rl.data import DataLoader  # noqa: E402
from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn  # noqa: E402
from prime_rl.transports.rollouts import MicroBatch as Theirs  # noqa: E402

from hone.integrations.prime_rl.wire import MicroBatch as Ours  # noqa: E402

folder = Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
ours = Ours.__struct_fields__
assert Theirs.__struct_fields__[: len(ours)] == ours, Theirs.__struct_fields__

config = TrainerConfig(**expected["config"])
assert isinstance(config.loss, CustomLossConfig)
rl_loss = setup_rl_loss_fn(config.loss)

loader = DataLoader(folder, 1, 1, FileSystemTransportConfig())
micro_batches = loader.get_batch()
scale = sum(int((b["loss_mask"] & (b["rl_weights"] != 0)).sum()) for b in micro_batches)
loss, gradients = 0.0, []
for batch in micro_batches:
    lengths = batch["sequence_lengths"]
    logprobs = (batch["inference_logprobs"][0] + expected["shift"]).requires_grad_()
    columns = [batch[name][0].split(lengths) for name in ("inference_logprobs", "advantages", "loss_mask")]
    value, _ = compute_loss(
        logprobs.split(lengths), columns[0], None, columns[1], columns[2],
        batch["rl_weights"][0].split(lengths), None, None, rl_loss, scale, 1, 1,
    )  # fmt: skip
    value.backward()
    loss += float(value)
    at = batch["loss_mask"][0]
    gradients += logprobs.grad[at].tolist()
print(json.dumps({"loss": loss, "gradients": sorted(gradients), "max_steps": config.max_steps}))
