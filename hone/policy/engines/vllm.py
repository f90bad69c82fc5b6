"""Client for vLLM 0.32: tokens in, tokens out, with the weight version of each token.

The server needs the flags of `hone engine serve`: `--enable-scale-out` enables the token route,
`VLLM_SERVER_DEV_MODE=1` the routes for weight updates, and `--logprobs-mode processed_logprobs` the
log-probabilities of the sampling distribution.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
from hone.types import Routing

WORKER_EXTENSION = "hone_vllm.WorkerExtension"  # see inside/hone_vllm.py
NO_LOGPROB = -9999.0  # vLLM's value for a missing log-probability
ADAPTER = "adapter"  # the name of the adapters in requests
_TOP = 20  # a server's default maximum


class Vllm(EngineClient):
    kind = "vllm"
    overflow_phrases = ("maximum model length", "maximum context length", "max_tokens must be at least 1")

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self._extension: str | None = None
        self._has_adapter = False  # whether requests name the adapter that `load_weights` has loaded

    async def server_info(self) -> ServerInfo:
        try:
            models = await self.http.get("/v1/models")
            info = await self.http.get("/weight_info")
            return ServerInfo(
                context_tokens=int(models["data"][0]["max_model_len"]), label=str(info["weight_version"])
            )
        except Refused as error:
            raise _missing_route(self.url, error) from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(f"{self.url} is not a vLLM server: set engine.kind, or engine.urls", 0) from error

    async def health(self) -> None:
        await self.http.get("/health")

    async def generate(self, request: GenerateRequest, *, timeout_s: float) -> CompletionChunk:
        sampling = request.sampling
        parameters = {
            "max_tokens": request.limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": request.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # only for the sampled token
        }
        choice = await self._generate(request.prompt, parameters, timeout_s=timeout_s)
        return parse_chunk(self.url, choice, len(request.prompt))

    async def score(self, tokens: Sequence[int], start: int, *, timeout_s: float) -> ScoredTokens:
        parameters = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "prompt_logprobs": 0}
        reply = await self._request(tokens, parameters, timeout_s=timeout_s)
        return parse_scores(self.url, reply, tokens, start)

    async def top_logprobs(
        self, prompt: Sequence[int], *, temperature: float, top_k: int = 0
    ) -> Mapping[int, float]:
        parameters = {
            "max_tokens": 1,
            "temperature": temperature,
            "top_k": top_k,
            "logprobs": _TOP,
            "seed": 0,
        }
        choice = await self._generate(prompt, parameters)
        entries = choice["logprobs"]["content"][0]["top_logprobs"]
        return {e["token_id"]: e["logprob"] for e in entries if e["logprob"] > NO_LOGPROB}

    async def sample_text(self, prompt: Sequence[int], count: int) -> tuple[list[int], str]:
        parameters = {
            "max_tokens": count,
            "temperature": 2.0,
            "detokenize": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }
        choice = await self._generate(prompt, parameters, output_mode="text")
        return choice["token_ids"], choice["text"]

    async def abort(self) -> None:
        await self.http.post("/abort_requests", {})

    async def pause(self) -> None:
        await self.http.post("/pause?mode=abort")

    async def resume(self) -> None:
        try:
            await self.http.post("/resume")
        except Refused as error:
            raise _missing_route(self.url, error) from error

    async def sleep(self, *, timeout_s: float) -> None:
        await self.http.post("/sleep?level=1&mode=wait", timeout_s=timeout_s)

    async def wake_up(self, *, timeout_s: float) -> None:
        await self.http.post("/wake_up", timeout_s=timeout_s)

    async def load_weights(self, folder: Path, label: str, *, timeout_s: float) -> None:
        if holds_adapters(folder):
            await self._load_adapter(folder, timeout_s)
        else:
            await self._load_model(folder, timeout_s)
        reset = await self.http.post("/reset_prefix_cache")
        if not reset["success"]:
            raise EngineError(
                f"{self.url} could not drop the KV cache of its old weights while requests use it"
            )
        await self.http.post("/update_weight_version", {"new_version": label})

    async def _load_adapter(self, folder: Path, timeout_s: float) -> None:
        call = {"lora_name": ADAPTER, "lora_path": str(folder), "load_inplace": True}
        body, headers = json.dumps(call).encode(), {"Content-Type": "application/json"}
        try:  # its reply is no JSON
            await self.http.request(
                "POST", "/v1/load_lora_adapter", body=body, headers=headers, timeout_s=timeout_s
            )
        except Refused as error:
            raise Refused(
                f"{self.url} cannot load the adapters in {folder} ({error}): start it with `hone engine "
                'serve MODEL --weight-sync adapter --adapter-rank RANK`, or set engine.weight_sync = "disk"',
                error.status,
            ) from error
        self._has_adapter = True

    async def _load_model(self, folder: Path, timeout_s: float) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self.http.post("/collective_rpc", call, timeout_s=timeout_s)
        if await self._is_extended():
            await self.http.post("/collective_rpc", {"method": "hone_repack"}, timeout_s=timeout_s)

    async def compare_weights(self, published: Fingerprint, *, timeout_s: float) -> Comparison:
        names = list(published.tensors)
        if not await self._is_extended():
            reason = f"{self.url} has no worker extension of Hone: start it with `hone engine serve`"
            return Comparison(unproven=names, reasons=[reason])
        call: dict[str, Any] = {"method": "hone_digests", "kwargs": {"names": names}}
        if rank := published.adapter_rank:
            call = {"method": "hone_adapter_digests", "kwargs": {"rank": rank}}
        reply = await self.http.post("/collective_rpc", call, timeout_s=timeout_s)
        return compare(published, reply["results"])

    async def _is_extended(self) -> bool:
        """Return whether the workers have Hone's extension; cached, because the query takes seconds."""
        if self._extension is None:
            config = (await self.http.get("/server_info?config_format=json"))["vllm_config"]
            self._extension = str(config["parallel_config"]["worker_extension_cls"])
        return self._extension == WORKER_EXTENSION

    async def _generate(
        self,
        prompt: Sequence[int],
        parameters: Mapping[str, Any],
        *,
        output_mode: str = "tokens",
        timeout_s: float = 120.0,
    ) -> dict[str, Any]:
        reply = await self._request(prompt, parameters, output_mode=output_mode, timeout_s=timeout_s)
        return reply["choices"][0]

    async def _request(
        self,
        prompt: Sequence[int],
        parameters: Mapping[str, Any],
        *,
        output_mode: str = "tokens",
        timeout_s: float,
    ) -> dict[str, Any]:
        # The caller defines the stop tokens, not the generation config.
        given = {"ignore_eos": True, "detokenize": False, **parameters}
        body: dict[str, Any] = {
            "token_ids": list(prompt),
            "sampling_params": given,
            "output_mode": output_mode,
        }
        if self._has_adapter:
            body["model"] = ADAPTER
        try:
            return await self.http.post("/inference/v1/generate", body, timeout_s=timeout_s)
        except Refused as error:
            if error.status in (403, 404):
                raise _missing_route(self.url, error) from error
            raise


def parse_scores(url: str, reply: Mapping[str, Any], tokens: Sequence[int], start: int) -> ScoredTokens:
    """Parse the scores of a prompt. Raises ServerUnavailable if a token has none."""
    entries: list[dict[str, Any] | None] = reply["prompt_logprobs"]  # the first token has none
    choice = reply["choices"][0]
    said = [(entry or {}).get(str(token)) for token, entry in zip(tokens, entries, strict=True)][start:]
    if any(each is None for each in said):
        raise ServerUnavailable(f"{url} returned log-probabilities of other tokens than it was asked for")
    logprobs = np.asarray([each["logprob"] for each in said if each is not None], np.float32)
    if logprobs.min() <= NO_LOGPROB:
        raise ServerUnavailable(f"{url} gave a token of the prompt no probability: its weights are corrupt")
    return ScoredTokens(logprobs=logprobs, label=str(choice["weight_versions"][0]["version"]))


def parse_chunk(url: str, choice: Mapping[str, Any], prompt_tokens: int) -> CompletionChunk:
    """Parse a choice of the token route. Raises ServerUnavailable if its parts do not match."""
    ids: list[int] = choice["token_ids"]
    entries: list[dict[str, Any]] = choice["logprobs"]["content"] if choice["logprobs"] else []
    spans: list[dict[str, Any]] = choice["weight_versions"] or []
    labels = tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    same = [entry["token_id"] for entry in entries] == ids and len(labels) == len(ids)
    if not same or any(entry["logprob"] <= NO_LOGPROB for entry in entries):
        raise ServerUnavailable(
            f"{url} returned {len(ids)} tokens, {len(entries)} log-probabilities and {len(labels)} weight "
            "versions that do not match"
        )
    return CompletionChunk(
        token_ids=np.asarray(ids, np.int32),
        logprobs=np.asarray([entry["logprob"] for entry in entries], np.float32),
        labels=labels,
        end=Finish(choice["finish_reason"]),
        routing=_parse_routing(url, choice.get("routed_experts"), prompt_tokens + len(ids) - 1),
    )


def _parse_routing(url: str, encoded: str | None, positions: int) -> Routing | None:
    """Return the experts of `positions` positions, in base64 of .npy: uint8 or uint16 [n, layers, k].

    A server sends them if it was started with `--enable-return-routed-experts`.
    """
    if encoded is None:
        return None
    content = io.BytesIO(base64.b64decode(encoded))
    found: npt.NDArray[np.integer[Any]] = np.load(content, allow_pickle=False)
    if found.ndim != 3 or len(found) < positions:
        raise ServerUnavailable(f"{url} returned experts of shape {found.shape} for {positions} positions")
    small = int(found.max(initial=0)) <= np.iinfo(np.int8).max
    return found[:positions].astype(np.int8 if small else np.int16)


def _missing_route(url: str, error: Refused) -> Refused:
    return Refused(
        f"{url} has no route that Hone needs ({error}): start the server with `hone engine serve MODEL "
        "--kind vllm`, or with VLLM_SERVER_DEV_MODE=1, --enable-scale-out and --logprobs-mode "
        "processed_logprobs",
        error.status,
    )
