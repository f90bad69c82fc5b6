"""Rollouts by Hone's agent loop, made and called as verl's workers do; prints one line of JSON.

    python agent_loop.py AGENT_LOOP_YAML MODEL FAULTS

The first FAULTS requests to the engine fail. The log-probabilities of all rows are computed again with
transformers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import numpy as np
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap

from hone.integrations.rollouts.process import close_services
from hone.policy.engine import Sampling
from hone.policy.engines.open import open_servers
from hone.policy.model import load_tokenizer
from hone.policy.settings import ModelSettings, ServerEngineSettings

PROMPTS, SESSIONS, CONTEXT = 3, 4, 1024
PARAMETERS = {"temperature": 1.0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


class Client:
    """verl's client of its engine, over a fleet of Hone's."""

    def __init__(self, fleet: Any, faults: int) -> None:
        self.fleet, self.faults = fleet, faults

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        if self.faults:
            self.faults -= 1
            raise RuntimeError("injected")
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            max_tokens=sampling_params["max_tokens"],
            stop_token_ids=tuple(sampling_params["stop_token_ids"]),
        )
        reply = await self.fleet.generate(prompt_ids, sampling, session=request_id)
        return SimpleNamespace(
            token_ids=reply.token_ids.tolist(),
            log_probs=reply.logprobs.tolist(),
            stop_reason="completed",
            extra_fields={"min_global_steps": 4, "max_global_steps": 4},
        )


async def run(config: Path, model: Path, faults: int) -> dict[str, Any]:
    (entry,) = OmegaConf.load(config)
    rows = pq.read_table(config.parent / "train.parquet").to_pylist()
    url, python = os.environ.get("HONE_TEST_VLLM_URL"), Path(os.environ["HONE_TEST_VLLM_PYTHON"])
    where: dict[str, Any] = {"urls": (url,)} if url else {"python": python, "threads": 1}
    settings = ServerEngineSettings(kind="vllm", context_tokens=CONTEXT, **where)
    tokenizer, logs = load_tokenizer(model), Path(tempfile.mkdtemp())
    worker = {"agent": {"num_workers": 1}, "prompt_length": CONTEXT}
    trainer = DictConfigWrap(config=OmegaConf.create({"actor_rollout_ref": {"rollout": worker}}))
    async with open_servers(settings, ModelSettings(path=model), tokenizer, logs=logs) as fleet:
        client = Client(fleet, faults)

        async def rollout(prompt: int, session: int) -> Any:
            loop = hydra.utils.instantiate(
                config=entry,
                trainer_config=trainer,
                server_manager=client,
                tokenizer=tokenizer,
                processor=None,
                hf_model_type="qwen3",
                dataset_cls=None,
                data_config=DictConfigWrap(OmegaConf.create({})),
                tools=ToolListWrap([]),
            )
            row = {"extra_info": rows[prompt]["extra_info"], "raw_prompt": rows[prompt]["prompt"]}
            return await loop.run(
                dict(PARAMETERS), uid=f"u{prompt}", session_id=session, global_steps=5, **row
            )

        jobs = [rollout(prompt, session) for prompt in range(PROMPTS) for session in range(SESSIONS)]
        outputs = await asyncio.gather(*jobs)
    await close_services()
    return measure(outputs, model)


def measure(outputs: list[list[Any]], path: Path) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    gaps, stray = [0.0], [0.0]
    for output in (each for rollout in outputs for each in rollout):
        fields = output.as_dict()
        ids = torch.cat([fields["prompts"], fields["responses"]])[None]
        start = len(fields["prompts"])
        with torch.inference_mode():
            every = torch.log_softmax(model(ids).logits[0, start - 1 : -1], -1)
        own = every.gather(1, ids[0, start:, None])[:, 0].numpy()
        mask, given = fields["response_mask"].numpy() == 1, fields["rollout_log_probs"].numpy()
        gaps += np.abs(own - given)[mask].tolist()
        stray += np.abs(given[~mask]).tolist()
    ended = [rollout for rollout in outputs if rollout]
    return {
        "rollouts": len(outputs),
        "rows": [len(rollout) for rollout in outputs],
        "rewards": [[each.reward_score for each in rollout] for rollout in ended],
        "versions": sorted({each.extra_fields["max_global_steps"] for rollout in ended for each in rollout}),
        "trained": [sum(sum(each.response_mask) for each in rollout) for rollout in ended],
        "rollout_ids": [rollout[0].extra_fields["rollout_id"] for rollout in ended],
        "gap": max(gaps),
        "stray": max(stray),
    }


if __name__ == "__main__":
    found = asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
    print("FOUND " + json.dumps(found))
