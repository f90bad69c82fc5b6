"""A fake SGLang 0.5.15 server with a toy model; test_sglang.py compares it with recorded replies.

The toy's next token depends only on the last token and the weights, so tests know every log-probability.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

CONTEXT = 128
Fault = Callable[[web.Request], Any]  # answers instead of the server, or raises


def toy_logprobs(seed: int, last: int, vocabulary: int, temperature: float = 1.0) -> np.ndarray:
    """Return the logprobs [V] of the toy with weights `seed` after the token `last`."""
    logits = np.random.default_rng((seed, last)).normal(0.0, 2.0, vocabulary) / temperature
    return logits - np.log(np.exp(logits).sum())


def toy_weights(folder: Path, seed: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    (folder / "toy.json").write_text(json.dumps({"seed": seed}))
    return folder


class SglangServer:
    """`hold` blocks every request at its third token until set; `faults` answer the next requests.

    Neither affects the requests that verify a server, which have no stop tokens.
    """

    def __init__(self, tokenizer: Any, *, seed: int = 0, context: int = CONTEXT) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = len(tokenizer)
        self.seed = seed
        self.context = context
        self.label = "default"
        self.raw_logprobs = False  # as with SGLANG_RETURN_ORIGINAL_LOGPROB=1
        self.ends: set[int] = set()  # the model's own end tokens
        self.sick = False  # answers no further request
        self.asleep = False  # holds no memory, and fails for a request
        self.hold: asyncio.Event | None = None
        self.holding = asyncio.Event()  # a request has reached its third token
        self.faults: list[Fault] = []
        self.update_faults: list[Fault] = []  # the same for weight updates from disk
        self.rejects_nccl = False  # fails for weight updates over NCCL
        self.holds_nccl = False  # never ends them
        self.requests: list[tuple[str, Any]] = []  # (path, body) of all requests except health checks
        self.url = ""
        self.adapters: dict[str, Path] = {}  # name -> folder
        self.has_plugin = False  # proves its weights, see hone_sglang.py
        self.keeps_weights = False  # reports new weights and computes with the old ones
        self.max_rank = 16
        self._running: dict[str, asyncio.Event] = {}  # request id -> abort
        self._open = asyncio.Event()
        self._open.set()
        self._runner: web.AppRunner | None = None

    @property
    def generate_requests(self) -> list[dict[str, Any]]:
        """Return the requests for replies, without those that verify the server."""
        return [
            body
            for path, body in self.requests
            if path == "/generate" and body["sampling_params"].get("stop_token_ids") is not None
        ]

    async def start(self, port: int = 0) -> None:
        app = web.Application(middlewares=[self._refuse_when_sick])
        app.add_routes(
            [
                web.get("/health", self._empty),
                web.get("/health_generate", self._empty),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/v1/loads", self._loads),
                web.get("/get_weight_version", self._deprecated),
                web.get("/flush_cache", self._flush),
                web.post("/generate", self._generate),
                web.post("/abort_request", self._abort),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/update_weights_from_disk", self._update),
                web.post("/update_weight_version", self._set_label),
                web.post("/weights_checker", self._check_weights),
                web.post("/load_lora_adapter", self._load_adapter),
                web.post("/unload_lora_adapter", self._unload_adapter),
                web.post("/release_memory_occupation", self._release_memory),
                web.post("/resume_memory_occupation", self._resume_memory),
                web.post("/init_weights_update_group", self._group),
                web.post("/destroy_weights_update_group", self._group),
                web.post("/update_weights_from_distributed", self._distributed),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close every connection and stop."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def restart(self, *, seed: int = 0) -> None:
        """Restart at the same address with the first weights, like a new process."""
        port = int(self.url.rsplit(":", 1)[1])
        await self.stop()
        self.seed, self.label, self.asleep = seed, "default", False
        self._open.set()
        await self.start(port)

    @web.middleware
    async def _refuse_when_sick(self, request: web.Request, handler: Any) -> web.StreamResponse:
        return web.Response(status=503) if self.sick else await handler(request)

    async def _generate(self, request: web.Request) -> web.Response:
        assert not self.asleep, "its weights are not in memory"
        body = await request.json()
        self.requests.append(("/generate", body))
        if self.faults and body["sampling_params"].get("stop_token_ids") is not None:
            answer = self.faults.pop(0)(request)
            return await answer if asyncio.iscoroutine(answer) else answer
        await self._open.wait()
        ids, parameters = body["input_ids"], body["sampling_params"]
        if len(ids) >= self.context:
            return _error(
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({self.context} tokens)."
            )
        if max(ids) >= self.vocabulary:
            return _error(
                f"The input_ids {ids} contains values greater than the vocab size ({self.vocabulary})."
            )
        rid, aborted = uuid.uuid4().hex, asyncio.Event()
        self._running[rid] = aborted
        try:
            return web.json_response(await self._reply(rid, aborted, body, parameters))
        finally:
            del self._running[rid]

    async def _reply(
        self, rid: str, aborted: asyncio.Event, body: dict[str, Any], parameters: dict[str, Any]
    ) -> dict[str, Any]:
        began, prompt = time.perf_counter(), body["input_ids"]
        stops = set(parameters.get("stop_token_ids") or ())
        draws = np.random.default_rng(parameters.get("sampling_seed"))
        out: list[int] = []
        entries: list[list[Any]] = []
        top: list[list[list[Any]]] = []
        finish: dict[str, Any] = {"type": "length", "length": parameters["max_new_tokens"]}
        while len(out) < parameters["max_new_tokens"]:
            if len(out) == 2 and self.hold is not None and stops:
                self.holding.set()
                done, pending = await asyncio.wait(
                    [asyncio.create_task(e.wait()) for e in (self.hold, aborted)],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in pending:
                    task.cancel()
                del done
            if aborted.is_set():
                finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                break
            last = out[-1] if out else prompt[-1]
            token, said = self._draw(last, parameters, draws)
            out.append(token)
            entries.append([float(said[token]), token, None])
            best = np.argsort(-said)[: body.get("top_logprobs_num", 0)]
            top.append([[float(said[t]), int(t), None] for t in best])
            if token in stops or (token in self.ends and not parameters.get("ignore_eos")):
                finish = {"type": "stop", "matched": token}
                break
            await asyncio.sleep(0)
        meta = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": len(prompt),
            "weight_version": self.label,
            "num_retractions": 0,
            "input_token_logprobs": self._scores(prompt, body.get("logprob_start_len", -1)),
            "output_token_logprobs": entries,
            "output_token_logprobs_length": len(entries),
            "reasoning_tokens": 0,
            "completion_tokens": len(out),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
            "e2e_latency": time.perf_counter() - began,
            "response_sent_to_client_ts": time.time(),
        }
        if body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = top
        text = self.tokenizer.decode(out, skip_special_tokens=False)
        return {"text": text, "output_ids": out, "meta_info": meta}

    def _scores(self, prompt: list[int], start: int) -> list[list[Any]]:
        """Return the entries of the tokens from `start` on; the first has no log-probability."""
        if start < 0:
            return []
        entries: list[list[Any]] = [[None, prompt[start], None]]
        for last, token in zip(prompt[start:], prompt[start + 1 :], strict=False):
            named = token if token < self.vocabulary - 1 else 0
            entries.append([float(toy_logprobs(self.seed, last, self.vocabulary)[token]), named, None])
        return entries

    def _draw(
        self, last: int, parameters: dict[str, Any], draws: np.random.Generator
    ) -> tuple[int, np.ndarray]:
        """Return a token and the reported log-probabilities, over the full vocabulary despite top-k."""
        temperature = parameters.get("temperature", 1.0) or 1.0
        shaped = toy_logprobs(self.seed, last, self.vocabulary, temperature)
        kept = shaped.copy()
        if (top_k := parameters.get("top_k", -1)) > 0:
            kept[np.argsort(-kept)[top_k:]] = -np.inf
        probabilities = np.exp(kept) / np.exp(kept).sum()
        greedy = parameters.get("temperature") == 0
        token = int(kept.argmax()) if greedy else int(draws.choice(self.vocabulary, p=probabilities))
        said = toy_logprobs(self.seed, last, self.vocabulary) if self.raw_logprobs else shaped
        return token, said

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(("/abort_request", body))
        for rid, aborted in self._running.items():
            if body.get("abort_all") or body.get("rid") == rid:
                aborted.set()
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        self.requests.append(("/pause_generation", await request.json()))
        self._open.clear()
        for aborted in self._running.values():
            aborted.set()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        self.requests.append(("/continue_generation", await request.json()))
        self._open.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(("/update_weights_from_disk", body))
        if self.update_faults:
            return self.update_faults.pop(0)(request)
        weights = Path(body["model_path"]) / "toy.json"
        if not weights.is_file():
            message = f"Failed to get weights iterator: '{body['model_path']}'."
            return web.json_response(
                {"success": False, "message": message, "num_paused_requests": 0}, status=400
            )
        if not self.keeps_weights:
            self.seed = json.loads(weights.read_text())["seed"]
        message = "Succeeded to update model weights."
        if "weight_version" in body:
            self.label = body["weight_version"]
            message += f" Weight version updated to {self.label}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def _set_label(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        message = f"Weight version updated to {self.label}"
        return web.json_response({"success": True, "message": message, "new_version": self.label})

    async def _check_weights(self, request: web.Request) -> web.Response:
        """Answer like Hone's plugin of a server whose tensors all have the digest `seed`."""
        body = await request.json()
        self.requests.append(("/weights_checker", body))
        action, _, wanted = body["action"].partition(":")
        if not self.has_plugin or action != "hone_digests":
            message = f"Unsupported action={body['action']!r}"
            return web.json_response({"success": False, "message": message}, status=400)
        part = [0, 0, 2, 3, "bfloat16", f"{self.seed:016x}"]
        worker = {"tensors": {name: [part] for name in json.loads(wanted)["names"]}, "error": ""}
        ranks = [{"per_gpu_checksum": "", "workers": [worker]}]
        checksum = hashlib.sha256().hexdigest()
        return web.json_response(
            {"success": True, "message": "", "ranks": ranks, "per_engine_checksum": checksum}
        )

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body))
        if self.max_rank < json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())["r"]:
            return self._loaded(error=f"its rank exceeds the max_lora_rank {self.max_rank}")
        self.adapters[body["lora_name"]] = Path(body["lora_path"])
        return self._loaded()

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body))
        del self.adapters[body["lora_name"]]
        return self._loaded()

    def _loaded(self, error: str = "") -> web.Response:
        loaded = {name: str(folder) for name, folder in self.adapters.items()}
        answer = {"rid": None, "http_worker_ipc": None, "success": not error, "error_message": error}
        return web.json_response({**answer, "loaded_adapters": loaded}, status=400 if error else 200)

    async def _group(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, await request.json()))
        return web.json_response({"success": True, "message": "Succeeded."})

    async def _distributed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body))
        if self.holds_nccl:
            await asyncio.Event().wait()
        if self.rejects_nccl:
            return web.json_response({"success": False, "message": "Failed to update parameter online."})
        self.label = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded to update parameter online."})

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": "MODEL",
                "tokenizer_path": "MODEL",
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.label,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
            }
        )

    async def _server_info(self, request: web.Request) -> web.Response:
        """Return only the fields that the client reads."""
        state = {"model_path": "MODEL", "context_length": self.context, "weight_version": self.label}
        sizes = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1}
        return web.json_response({**sizes, "weight_version": self.label, "internal_states": [state]})

    async def _loads(self, request: web.Request) -> web.Response:
        load = {"dp_rank": 0, "num_running_reqs": len(self._running), "num_waiting_reqs": 0}
        return web.json_response({"timestamp": "", "version": "0.5.15.post1", "loads": [load]})

    async def _deprecated(self, request: web.Request) -> web.Response:
        message = "Endpoint '/get_weight_version' is deprecated. Please use '/model_info' instead."
        body = {"object": "error", "message": message, "type": "404", "param": None, "code": 404}
        return web.json_response(body, status=404)

    async def _flush(self, request: web.Request) -> web.Response:
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. (When there are running or "
            "waiting requests, the operation will not be performed.)\n"
        )

    async def _release_memory(self, request: web.Request) -> web.Response:
        assert not self._running, "SGLang asserts that no request is running"
        self.asleep = True
        return web.Response()

    async def _resume_memory(self, request: web.Request) -> web.Response:
        self.asleep = False
        return web.Response()

    async def _empty(self, request: web.Request) -> web.Response:
        return web.Response()


def _error(message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=400)


@asynccontextmanager
async def sglang_servers(
    tokenizer: Any, count: int = 1, **settings: Any
) -> AsyncGenerator[list[SglangServer]]:
    servers = [SglangServer(tokenizer, **settings) for _ in range(count)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.stop()
