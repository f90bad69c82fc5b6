"""The actor of a vLLM server; it imports neither verl nor torch, so that it starts quickly."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import ray

from hone.policy.engine import Sampling
from hone.policy.engines.open import open_servers
from hone.policy.model import load_tokenizer
from hone.policy.settings import ModelSettings, ServerEngineSettings

_VERSIONS = ("global_steps", "min_global_steps", "max_global_steps")


def folder() -> Path:
    """Where weights and logs go."""
    return Path(os.environ["HONE_TEST_VERL_FOLDER"])


@ray.remote(num_cpus=0, max_concurrency=1000)
class Server:
    """One vLLM server."""

    async def launch(self, model: str, context: int, seqs: int) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self.owner = asyncio.create_task(self._serve(Path(model), context, seqs))
        await self.ready

    async def _serve(self, model: Path, context: int, seqs: int) -> None:
        if url := os.environ.get("HONE_TEST_VLLM_URL"):  # one that runs already, or starts just now
            await _first_reply(url)
            settings = ServerEngineSettings(kind="vllm", context_tokens=context, urls=(url,))
        else:
            python = Path(os.environ["HONE_TEST_VLLM_PYTHON"])
            settings = ServerEngineSettings(
                kind="vllm", context_tokens=context, max_batch=seqs, threads=1, python=python
            )
        try:
            async with open_servers(
                settings, ModelSettings(path=model), load_tokenizer(model), logs=folder(), partial=True
            ) as self.fleet:
                await self.fleet.load_weights(model, 0)
                self.ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            raise

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> SimpleNamespace:
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            max_tokens=sampling_params["max_tokens"],
            stop_token_ids=tuple(sampling_params["stop_token_ids"]),
        )
        reply = await self.fleet.generate(prompt_ids, sampling, session=request_id)
        version = int(reply.version[0])
        count = int((reply.version == version).sum())
        reason = "completed" if reply.finish == "stop" else "length"
        return SimpleNamespace(  # the fields of verl's TokenOutput
            token_ids=reply.token_ids[:count].tolist(),
            log_probs=reply.logprobs[:count].tolist(),
            routed_experts=None,
            num_preempted=None,
            # verl's engines return what an update interrupts, and its client asks for the rest
            stop_reason=reason if count == len(reply.version) else "aborted",
            extra_fields=dict.fromkeys(_VERSIONS, version),
        )

    async def load(self, weights: str, version: int) -> None:
        await self.fleet.load_weights(Path(weights), version)

    async def nothing(self, **_: Any) -> None: ...

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


async def _first_reply(url: str) -> None:
    """Wait for a server and its first reply, which takes long on a busy machine."""
    body = {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 4}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1200)) as session:
        for _ in range(600):
            try:
                async with session.post(f"{url}/v1/completions", json=body) as reply:
                    reply.raise_for_status()
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(2)
    raise TimeoutError(f"{url} does not answer")
