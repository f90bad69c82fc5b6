"""Client for SGLang 0.5.15: `/generate` with token ids in and out.

Seeds take effect only on a server with `--enable-deterministic-inference`. A server always stops at its
model's own end tokens (`ignore_eos` would ignore the caller's stop tokens, too); `PartialCompletion`
continues such a reply with another request. A server proves its weights with the plugin that `hone engine
serve` loads, see `inside/hone_sglang.py`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hone.policy.engine import EngineError, Finish
from hone.policy.engines.client import (
    CompletionChunk,
    EngineClient,
    GenerateRequest,
    Http,
    Refused,
    ScoredTokens,
    ServerInfo,
    ServerUnavailable,
    holds_adapters,
)
from hone.policy.engines.fingerprint import Comparison, Fingerprint, compare

# A server accepts prompts shorter than its context - 6 and ends replies one token before the context ends.
RESERVED = 7
ADAPTER = "hone-"  # begins the names of adapters in requests
DIGESTS = "hone_digests:"  # begins the action of the plugin, see inside/hone_sglang.py
_TOP = 20


class Sglang(EngineClient):
    kind = "sglang"
    overflow_phrases = ("longer than the model's context", "exceeds the model's", "maximum allowed length")

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self._adapter = ""  # its name in requests; "": none
        self._has_plugin: bool | None = None

    async def server_info(self) -> ServerInfo:
        try:
            info = await self.http.get("/model_info")
            server = await self.http.get("/server_info")
            context = server["internal_states"][0]["context_length"]
            if context is None:  # the server uses the model's own length
                models = await self.http.get("/v1/models")
                context = models["data"][0]["max_model_len"]
            return ServerInfo(context_tokens=int(context) - RESERVED, label=str(info["weight_version"]))
        except (Refused, KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(
                f"{self.url} is not an SGLang server: set engine.kind, or engine.urls", 0
            ) from error

    async def health(self) -> None:
        await self.http.get("/health_generate")

    async def generate(self, request: GenerateRequest, *, timeout_s: float) -> CompletionChunk:
        sampling = request.sampling
        parameters = {
            "max_new_tokens": request.limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            "sampling_seed": request.seed,
        }
        return parse_chunk(self.url, await self._generate(request.prompt, parameters, timeout_s=timeout_s))

    async def score(self, tokens: Sequence[int], start: int, *, timeout_s: float) -> ScoredTokens:
        parameters = {"max_new_tokens": 1, "temperature": 1.0}
        # the first token that a server reports has no log-probability
        reply = await self._generate(tokens, parameters, logprob_start_len=start - 1, timeout_s=timeout_s)
        return parse_scores(self.url, reply, tokens[start:])

    async def top_logprobs(
        self, prompt: Sequence[int], *, temperature: float, top_k: int = 0
    ) -> Mapping[int, float]:
        parameters = {"max_new_tokens": 1, "temperature": temperature, "top_k": top_k or -1}
        reply = await self._generate(prompt, parameters, top_logprobs_num=_TOP)
        entries = reply["meta_info"]["output_top_logprobs"][0]
        return {token: logprob for logprob, token, *_ in entries if logprob > -1e30}

    async def sample_text(self, prompt: Sequence[int], count: int) -> tuple[list[int], str]:
        parameters = {"max_new_tokens": count, "temperature": 2.0, "ignore_eos": True}
        reply = await self._generate(prompt, parameters)
        return reply["output_ids"], reply["text"]

    async def abort(self) -> None:
        await self.http.post("/abort_request", {"abort_all": True})

    async def pause(self) -> None:
        await self.http.post("/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        await self.http.post("/continue_generation", {})

    async def sleep(self, *, timeout_s: float) -> None:
        await self.http.post("/release_memory_occupation", {}, timeout_s=timeout_s)

    async def wake_up(self, *, timeout_s: float) -> None:
        await self.http.post("/resume_memory_occupation", {}, timeout_s=timeout_s)

    async def load_weights(self, folder: Path, label: str, *, timeout_s: float) -> None:
        if holds_adapters(folder):
            await self._load_adapter(folder, timeout_s)
            await self.http.post(
                "/update_weight_version", {"new_version": label, "abort_all_requests": False}
            )
            return
        call = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
        answer = await self.http.post("/update_weights_from_disk", call, timeout_s=timeout_s)
        if not answer["success"]:
            raise EngineError(f"{self.url} failed to load the weights in {folder}: {answer['message']}")

    async def _load_adapter(self, folder: Path, timeout_s: float) -> None:
        """Load adapters under a new name, which no cached key or value belongs to; unload the others."""
        name = ADAPTER + secrets.token_hex(8)
        try:
            answer = await self.http.post(
                "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, timeout_s=timeout_s
            )
        except Refused as error:
            raise Refused(
                f"{self.url} cannot load the adapters in {folder} ({error}): start it with `hone engine "
                'serve MODEL --weight-sync adapter --adapter-rank RANK`, or set engine.weight_sync = "disk"',
                error.status,
            ) from error
        self._adapter = name
        for other in answer["loaded_adapters"]:
            if other != name and other.startswith(ADAPTER):
                await self.http.post("/unload_lora_adapter", {"lora_name": other}, timeout_s=timeout_s)

    async def compare_weights(self, published: Fingerprint, *, timeout_s: float) -> Comparison:
        names = list(published.tensors)
        if not await self._is_extended():
            reason = f"{self.url} has no plugin of Hone: start it with `hone engine serve`"
            return Comparison(unproven=names, reasons=[reason])
        adapter = self._adapter if published.adapter_rank else ""
        if adapter:  # the server holds adapters for its computations from the first request that uses them
            await self.top_logprobs([0], temperature=1.0)
        workers = await self._digests(names, adapter, timeout_s=timeout_s)
        errors = [f"{self.url}: {worker['error']}" for worker in workers if worker["error"]]
        if errors:
            return Comparison(unproven=names, reasons=errors)
        return compare(published, [worker["tensors"] for worker in workers])

    async def _is_extended(self) -> bool:
        """Return whether the server has Hone's plugin; cached."""
        if self._has_plugin is None:
            try:
                await self._digests([], "", timeout_s=30.0)
                self._has_plugin = True
            except Refused:  # SGLang knows no such action
                self._has_plugin = False
        return self._has_plugin

    async def _digests(self, names: Sequence[str], adapter: str, *, timeout_s: float) -> list[Any]:
        """Return what each worker holds, see `inside/hone_sglang.py`. Raises Refused without the plugin."""
        request = json.dumps({"names": list(names), "adapter": adapter})
        reply = await self.http.post("/weights_checker", {"action": DIGESTS + request}, timeout_s=timeout_s)
        return [worker for group in reply["ranks"] for worker in group["workers"]]

    async def _generate(
        self,
        prompt: Sequence[int],
        parameters: Mapping[str, Any],
        *,
        top_logprobs_num: int = 0,
        logprob_start_len: int = -1,  # none of the prompt
        timeout_s: float = 120.0,
    ) -> dict[str, Any]:
        plain = {"skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}
        body: dict[str, Any] = {
            "input_ids": list(prompt),
            "sampling_params": {**plain, **parameters},
            "return_logprob": True,
            "top_logprobs_num": top_logprobs_num,
            "logprob_start_len": logprob_start_len,
        }
        if self._adapter:
            body["lora_path"] = self._adapter
        return await self.http.post("/generate", body, timeout_s=timeout_s)


def parse_scores(url: str, reply: Mapping[str, Any], scored: Sequence[int]) -> ScoredTokens:
    """Parse the scores of `scored`, the end of a prompt. Raises ServerUnavailable if they do not match."""
    meta = reply["meta_info"]
    entries: list[Any] = meta["input_token_logprobs"][1:]  # [[log-probability, id, text], ...]
    named = [entry[1] for entry in entries]
    # SGLang names the last token of its vocabulary 0
    if len(named) != len(scored) or any(n not in (t, 0) for n, t in zip(named, scored, strict=True)):
        raise ServerUnavailable(f"{url} returned log-probabilities of other tokens than it was asked for")
    logprobs = np.asarray([entry[0] for entry in entries], np.float32)
    if not np.isfinite(logprobs).all():
        raise ServerUnavailable(f"{url} gave a token of the prompt no probability: its weights are corrupt")
    return ScoredTokens(logprobs=logprobs, label=str(meta["weight_version"]))


def parse_chunk(url: str, reply: Mapping[str, Any]) -> CompletionChunk:
    """Parse a reply of `/generate`. Raises ServerUnavailable if its parts are inconsistent."""
    meta = reply["meta_info"]
    ids: list[int] = reply["output_ids"]
    entries: list[Any] = meta.get("output_token_logprobs") or []  # [[log-probability, id, text], ...]
    if [entry[1] for entry in entries] != ids:
        raise ServerUnavailable(
            f"{url} returned {len(ids)} tokens and {len(entries)} log-probabilities that do not match"
        )
    end = Finish(meta["finish_reason"]["type"])
    return CompletionChunk(
        token_ids=np.asarray(ids, np.int32),
        logprobs=np.asarray([entry[0] for entry in entries], np.float32),
        labels=(str(meta["weight_version"]),) * len(ids),
        end=end,
    )
