"""A server process that the run starts, monitors and stops, and the command line with the flags it needs.

It never outlives the run, however that ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.policy.engine import EngineError
from hone.policy.engines import server_guard
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.sglang import RESERVED
from hone.policy.engines.vllm import WORKER_EXTENSION
from hone.policy.settings import ModelSettings, ServerEngineSettings
from hone.utils.devices import visible_devices

_INSIDE = Path(__file__).parent / "inside"  # modules that servers import
SGLANG_PLUGIN = "hone"  # see inside/hone_sglang-1.dist-info
_SLEEP = {  # flags of a server that can sleep and keeps its weights in host memory meanwhile
    "vllm": ("--enable-sleep-mode",),
    "sglang": ("--enable-memory-saver", "--enable-weights-cpu-backup"),
}
_SGLANG_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what `--max-lora-rank` accepts
CONTEXT_SLACK = {"vllm": 0, "sglang": RESERVED}  # context tokens that a server reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDevices:
    """The GPUs of one server."""

    gpus: tuple[int, ...] = ()  # of those that this process may use; (): all of them
    sleeps: bool = False  # whether the server can give their memory back, see `EngineClient.sleep`


def server_command(
    settings: ServerEngineSettings,
    model: ModelSettings,
    host: str,
    port: int,
    devices: ServerDevices = ServerDevices(),
) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raises EngineError if the package is not installed."""
    python = settings.python or Path(sys.executable)
    _require_installed(settings.kind, python)
    gpu = has_gpu()
    build = {"vllm": _vllm, "sglang": _sglang}[settings.kind]
    arguments, variables = build(settings, model, gpu)
    python_path = [str(_INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**variables, "PYTHONPATH": os.pathsep.join(python_path)}
    if settings.kind == "sglang":  # its default, port + 10,000, may exceed 65,535
        variables = {**variables, "SGLANG_GRPC_PORT": str(free_port(host))}
    if devices.gpus:
        variables = {**variables, "CUDA_VISIBLE_DEVICES": visible_devices(devices.gpus)}
    sleep = _SLEEP[settings.kind] if devices.sleeps else ()
    command = [str(python), *arguments, *sleep, "--host", host, "--port", str(port)]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return command, {**os.environ, **offline, **variables}


def _vllm(
    settings: ServerEngineSettings, model: ModelSettings, gpu: bool
) -> tuple[list[str], Mapping[str, str]]:
    arguments = [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model.path), "--served-model-name", "policy", "--dtype", model.dtype),
        *("--max-model-len", str(settings.context_tokens), "--max-num-seqs", str(settings.max_batch)),
        *("--tensor-parallel-size", str(settings.tensor_parallel)),
        *("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--enable-prefix-caching"),
        *("--disable-uvicorn-access-log", "--worker-extension-cls", WORKER_EXTENSION),
    ]
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    if settings.weight_sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
    if settings.weight_sync == "adapter":
        rank = next(rank for rank in _VLLM_RANKS if rank >= settings.adapter_rank)
        arguments += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "1"]
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if gpu:
        arguments += ["--gpu-memory-utilization", str(settings.gpu_memory_fraction)]
    else:
        # On a CPU, chunked prefill crashes the server for a request with a seed.
        prefill = [
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens",
            str(max(settings.context_tokens, 8192)),
        ]
        arguments += ["--enforce-eager", *prefill]
        variables["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        if settings.threads is not None:
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    return arguments, variables


def _sglang(
    settings: ServerEngineSettings, model: ModelSettings, gpu: bool
) -> tuple[list[str], Mapping[str, str]]:
    context = settings.context_tokens + CONTEXT_SLACK["sglang"]
    arguments = [
        *("-m", "sglang.launch_server", "--model-path", str(model.path), "--dtype", model.dtype),
        *("--context-length", str(context), "--max-running-requests", str(settings.max_batch)),
        *("--tp-size", str(settings.tensor_parallel), "--skip-server-warmup"),
    ]
    variables = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    if plugins := os.environ.get("SGLANG_PLUGINS"):  # a list excludes all others
        variables["SGLANG_PLUGINS"] = f"{plugins},{SGLANG_PLUGIN}"
    if settings.weight_sync == "adapter":
        arguments += ["--enable-lora", "--max-lora-rank", str(settings.adapter_rank)]
        # two, because new adapters are loaded before the old ones are unloaded
        arguments += ["--max-loras-per-batch", "2", "--lora-target-modules", *_SGLANG_TARGETS]
    if gpu:
        return [*arguments, "--mem-fraction-static", str(settings.gpu_memory_fraction)], variables
    arguments += [
        *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--max-total-tokens", str(settings.max_batch * context), "--disable-overlap-schedule"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        "--sleep-on-idle",
    ]
    if settings.weight_sync == "adapter":
        arguments += ["--lora-backend", "torch_native"]
    variables["SGLANG_USE_CPU_ENGINE"] = "1"
    if settings.threads is not None:
        variables["OMP_NUM_THREADS"] = str(settings.threads)
    return arguments, variables


def _require_installed(package: str, python: Path) -> None:
    if python == Path(sys.executable):
        found = importlib.util.find_spec(package) is not None
    else:
        test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        try:
            found = subprocess.run([python, "-c", test], check=False, timeout=60).returncode == 0
        except OSError as error:
            raise EngineError(f"cannot run `engine.python` = {python}: {error.strerror}") from error
    if not found:
        raise EngineError(
            f"{package} is not installed for {python}: install it into its own environment and "
            "set engine.python (--python) to its interpreter, or engine.urls to servers that run elsewhere"
        )


def free_port(host: str) -> int:
    """Return a port that is free at the moment; another process may take it."""
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


@contextmanager
def reserved_port(host: str) -> Generator[int]:
    """Reserve a free port for the duration of the context.

    The socket is bound but does not listen, so a server with SO_REUSEADDR (asyncio, vLLM) can use the port.
    """
    with closing(socket.socket()) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
        yield reservation.getsockname()[1]


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU, without torch: the server may have another one."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


_POLL_S = 0.25
_PROGRESS_S = 5.0  # between two progress messages while a server starts
_STOP_S = 20.0  # from the request to stop until the server is killed
_ALIVE_S = 10.0  # time limit of the health check of a running server
# An exception in a server's log; the first one is the cause, the rest are usually follow-on errors.
_REASON = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception)): (.+)")
_MEMORY = re.compile(r"out of memory|not enough (?:KV cache )?memory|No available memory|MemoryError", re.I)


class ServerProcess(Protocol):
    """Starts and stops one server."""

    name: str

    async def start(self) -> str:
        """Start the server unless it runs; return its URL. Raises EngineError."""
        ...

    async def ended(self) -> str:
        """Wait for the server's process to exit; return the reason as far as it is known."""
        ...

    async def stop(self) -> None: ...


class ExternalServer:
    """A server that the run does not manage. `ended` never returns; health checks detect its end."""

    def __init__(self, url: str) -> None:
        self.name = url

    async def start(self) -> str:
        return self.name

    async def ended(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets this event")

    async def stop(self) -> None:
        return None


class ManagedServer:
    """One server process. Its output goes to `log`; its URL and PID to the same path with the suffix .json.

    Args:
        say: gets progress messages while the server starts.
    """

    def __init__(
        self,
        name: str,
        settings: ServerEngineSettings,
        model: ModelSettings,
        log: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        address: tuple[str, int] = ("127.0.0.1", 0),
        devices: ServerDevices = ServerDevices(),
    ) -> None:
        self.name = name
        self._settings = settings
        self._model = model
        self._log = log
        self._say = say
        self._address = address
        self._devices = devices
        self._url = ""
        self._log_start = 0  # offset of the current process's output
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start the server unless it runs and is healthy; return its URL once it can serve.

        Raises EngineError, with the reason and the log's path, when it exits or is not ready in time.
        """
        if (
            self._process is not None
            and self._process.returncode is None
            and await self._is_healthy(_ALIVE_S)
        ):
            return self._url
        await self.stop()
        host, wanted = self._address
        with nullcontext(wanted) if wanted else reserved_port(host) as port:
            self._url = f"http://{host}:{port}"
            await self._spawn(host, port)
            await self._ready()
        return self._url

    async def _ready(self) -> None:
        """Wait until the health check passes. Raises EngineError."""
        began, next_message = time.monotonic(), 0.0
        while not await self._is_healthy(5.0):
            waited = time.monotonic() - began
            assert self._process is not None, "it was just started"
            if self._process.returncode is not None:
                raise EngineError(await self.ended())
            if waited > self._settings.ready_timeout_s:
                await self.stop()
                raise EngineError(
                    f"{self.name} was not ready within {self._settings.ready_timeout_s:g} s: see "
                    f"{self._log}, or raise engine.ready_timeout_s"
                )
            if waited >= next_message:
                self._say(f"{self.name} is starting ({waited:.0f} s)")
                next_message = waited + _PROGRESS_S
            await asyncio.sleep(_POLL_S)
        self._say(f"{self.name} is ready after {time.monotonic() - began:.0f} s")

    async def ended(self) -> str:
        """Wait for the process to exit; return the reason from its log."""
        assert self._process is not None, "it was started"
        code = await self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = await asyncio.to_thread(_failure_reason, self._log, self._log_start)
        return f"{self.name} {how}{reason} (log: {self._log})"

    async def stop(self) -> None:
        """Stop the server and every process it started, and wait for them. May be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the guard reads end of file and stops the server
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        self._log.with_suffix(".json").unlink(missing_ok=True)

    async def _spawn(self, host: str, port: int) -> None:
        command, environment = await asyncio.to_thread(
            server_command, self._settings, self._model, host, port, self._devices
        )
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", server_guard.__file__, str(os.getpid()), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # the run handles Ctrl-C
            )
        facts = {"url": self._url, "guard": self._process.pid, "command": command}
        self._log.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")

    async def _is_healthy(self, timeout_s: float) -> bool:
        """Return whether the health check passes."""
        with suppress(EngineError):
            async with new_session() as session:
                await Http(session, self._url).request("GET", "/health", timeout_s=timeout_s)
                return True
        return False


def require_free(host: str, port: int) -> None:
    """Raise EngineError when the port is in use or cannot be bound."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EngineError(
                f"port {port} of {host} cannot be used ({error.strerror}): choose another one with --port"
            ) from error


def _failure_reason(log: Path, start: int) -> str:
    """Return the exception in a log after offset `start` as ": message"; "" without one."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - (1 << 16)))
            tail = file.read().decode(errors="replace")
    except OSError:  # the log was removed
        return ""
    found = [match for line in tail.splitlines() if (match := _REASON.search(line))]
    if not found:
        return ""
    memory = next((m for m in found if _MEMORY.search(m[0])), None)
    if memory is None:
        return f": {found[0][2][:300]}"
    return (
        f": not enough memory: lower engine.max_batch, engine.context_tokens or engine.gpu_memory_fraction "
        f"({memory[2][:300]})"
    )
