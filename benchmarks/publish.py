"""Cost of publishing weights, and which wrong weights the digests detect.

Measured is a random Qwen3 model: the digests of all tensors, the folder that servers load, and the share of
the digests in it. Detection: 20 trials of each fault (the weights of the version before, one shard of two of
one tensor of the version before, two layers that changed places) after an update of lr 1e-6, in float32 and
bfloat16, on the digests of the tensors that a server would report; with `--vllm` and `--sglang PYTHON`, again
on a real server that has loaded the wrong weights from a folder. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from hone.policy.engines.client import Http, new_session
from hone.policy.engines.fingerprint import Fingerprint, Report, compare
from hone.policy.engines.inside.tensor_digest import as_matrix, tensor_digest
from hone.policy.engines.managed_server import ManagedServer
from hone.policy.engines.open import CLIENTS
from hone.policy.model import load_model
from hone.policy.settings import ModelSettings, ServerEngineSettings, TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.train.publish import EMBEDDING, HEAD, digest_of, fingerprint, folder_fingerprint

TRIALS = 20
LR = 1e-6  # Adam's first updates change each value by about the learning rate
EngineKind = Literal["vllm", "sglang"]
FAULTS = ("none", "old version", "old shard", "permuted layer")
SERVED = TinyModelSettings(
    hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate_size=128, max_positions=256
)


def make_model(hidden: int, layers: int, dtype: torch.dtype) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(dtype).eval()


def halves(name: str, tensor: Tensor) -> list[list[object]]:
    """Return the parts that two workers of a server report of a tensor."""
    matrix = as_matrix(tensor)
    middle = (matrix.shape[0] + 1) // 2
    dtype = str(matrix.dtype).removeprefix("torch.")
    return [
        [row, 0, *part.shape, dtype, f"{tensor_digest(part, row):016x}"]
        for row, part in ((0, matrix[:middle]), (middle, matrix[middle:]))
        if part.numel()
    ]


def report(tensors: Mapping[str, Tensor]) -> list[Report]:
    parts = {name: halves(name, tensor) for name, tensor in tensors.items()}
    return [{name: [part[at]] for name, part in parts.items() if len(part) > at} for at in range(2)]


def update(old: Mapping[str, Tensor], seed: int) -> tuple[dict[str, Tensor], int]:
    """Return the weights after one update of float32 masters, and how many tensors it changed."""
    generator = torch.Generator().manual_seed(seed)
    new = {
        name: (t.float() + LR * torch.randn(t.shape, generator=generator).sign()).to(t.dtype)
        for name, t in old.items()
    }
    return new, sum(not torch.equal(new[name], old[name]) for name in old)


def held_with(
    fault: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor], chance: random.Random
) -> dict[str, Tensor]:
    """Return what the server holds."""
    held = dict(new)
    if fault == "old version":
        return dict(old)
    if fault == "old shard":
        changed = [name for name in new if not torch.equal(halved(new[name]), halved(old[name]))]
        name = chance.choice(changed)
        held[name] = new[name].clone()
        halved(held[name]).copy_(halved(old[name]))
    if fault == "permuted layer":
        one, other = (f"model.layers.{number}." for number in chance.sample(range(4), 2))
        for name in new:
            if name.startswith(one):
                partner = other + name.removeprefix(one)
                held[name], held[partner] = new[partner], new[name]
    return held


def halved(tensor: Tensor) -> Tensor:
    matrix = as_matrix(tensor)
    return matrix[: (matrix.shape[0] + 1) // 2]


def detection() -> dict[str, int]:
    """Return the number of detections by fault and type, of TRIALS trials each."""
    found: dict[str, int] = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model(128, 4, dtype)
        old = {name: tensor.detach() for name, tensor in model.named_parameters()}
        kind = str(dtype).removeprefix("torch.")
        for fault in FAULTS:
            detected = 0
            for trial in range(TRIALS):
                new, changed = update(old, trial)
                assert changed, "the update must change some value, or the versions are equal"
                published = Fingerprint(tensors={name: digest_of(tensor) for name, tensor in new.items()})
                held = held_with(fault, old, new, random.Random(trial))
                detected += not compare(published, report(held)).proven
            found[f"{fault} {kind}"] = detected
            print(f"{fault:15} {kind:9} detected {detected:2} of {TRIALS}")
    return found


async def served_detection(engine: EngineKind, python: Path | None, kind: str, root: Path) -> dict[str, int]:
    """Return the number of detections by fault on a server with weights of type `kind`, of TRIALS each.

    Args:
        python: the interpreter that has the engine's package; None: this one.
    """
    folder = make_tiny(["def count(items):\n    return len(items)\n"] * 3, root / "model", SERVED)
    model = load_model(folder, kind)
    old = {name: tensor.detach() for name, tensor in model.named_parameters()}
    settings = ServerEngineSettings(kind=engine, context_tokens=256, threads=1, max_batch=4, python=python)
    server = ManagedServer(engine, settings, ModelSettings(path=folder, dtype=kind), root / "server.log")
    found: dict[str, int] = {}
    try:
        async with new_session() as session:
            client = CLIENTS[engine](Http(session, await server.start()))
            for fault in FAULTS:
                detected = 0
                for trial in range(TRIALS):
                    new, _ = update(old, trial)
                    digests = {name: digest_of(tensor) for name, tensor in new.items()}
                    digests[HEAD] = digests[EMBEDDING]
                    held = rewritten(folder, root / "held", held_with(fault, old, new, random.Random(trial)))
                    await client.pause()
                    await client.load_weights(held, str(trial), timeout_s=300.0)
                    await client.resume()
                    result = await client.compare_weights(Fingerprint(tensors=digests), timeout_s=300.0)
                    assert not result.unproven, result.reasons
                    detected += bool(result.differing)
                found[f"{engine} {fault} {kind}"] = detected
                print(f"{fault:15} {kind:9} detected {detected:2} of {TRIALS} by {engine}", flush=True)
    finally:
        await server.stop()
    return found


def rewritten(model: Path, folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Return `folder` as a copy of `model` with other weights."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def cost(hidden: int, layers: int, dtype: torch.dtype) -> dict[str, float]:
    """Return seconds and GB/s of the digests and of a folder, which includes them."""
    model = make_model(hidden, layers, dtype)
    gigabytes = sum(p.nbytes for p in model.parameters()) / 1e9
    fingerprint(model)
    began = time.perf_counter()
    fingerprint(model)
    digests = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        model.save_pretrained(folder)
        folder_fingerprint(Path(folder))
        written = time.perf_counter() - began
    return {
        "gigabytes": gigabytes,
        "digest_s": digests,
        "digest_gb_s": gigabytes / digests,
        "folder_s": written,
        "folder_gb_s": gigabytes / written,
        "digest_share": digests / written,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model that is published")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vllm", action="store_true", help="detect faults of a real vLLM server, too")
    parser.add_argument(
        "--sglang", type=Path, metavar="PYTHON", help="the same for SGLang, which this interpreter has"
    )
    given = parser.parse_args()
    detected = detection()
    served: dict[str, int] = {}
    engines: dict[EngineKind, Path | None] = {"vllm": None} if given.vllm else {}
    if given.sglang:
        engines["sglang"] = given.sglang
    for engine, python in engines.items():
        for kind in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory() as root:
                served |= asyncio.run(served_detection(engine, python, kind, Path(root)))
    costs = {
        str(dtype).removeprefix("torch."): cost(given.hidden, given.layers, dtype)
        for dtype in (torch.float32, torch.bfloat16)
    }
    for kind, figures in costs.items():
        print(kind, ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    print(json.dumps({"trials": TRIALS, "detected": detected, "served": served, "cost": costs}))


if __name__ == "__main__":
    main()
