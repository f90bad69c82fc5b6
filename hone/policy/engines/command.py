"""Build the command line that starts a vLLM or SGLang server with the flags that Hone needs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone.policy.engine import EngineError
from hone.policy.engines.sglang import RESERVED
from hone.policy.engines.vllm import WORKER_EXTENSION

ServerKind = Literal["vllm", "sglang"]
_INSIDE = Path(__file__).parent / "inside"  # modules that servers import
CONTEXT_SLACK = {"vllm": 0, "sglang": RESERVED}  # context tokens that a server reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server, without its address."""

    kind: ServerKind
    model: Path
    context_tokens: int
    dtype: Literal["float32", "bfloat16"]
    tensor_parallel: int = 1
    max_batch: int = 256  # requests decoded at the same time
    gpu_memory_fraction: float = 0.85
    weight_sync: Literal["disk", "nccl"] = "disk"
    threads: int | None = None  # for tensor operations on a CPU
    python: Path = Path(sys.executable)  # an interpreter with the server's package

    def with_python(self, python: Path) -> ServerOptions:
        return dataclasses.replace(self, python=python)


def server_command(options: ServerOptions, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raises EngineError if the package is not installed."""
    _require_installed(options)
    gpu = has_gpu()
    build = {"vllm": _vllm, "sglang": _sglang}[options.kind]
    arguments, variables = build(options, gpu)
    if options.kind == "sglang":  # its default, port + 10,000, may exceed 65,535
        variables = {**variables, "SGLANG_GRPC_PORT": str(free_port(host))}
    command = [str(options.python), *arguments, "--host", host, "--port", str(port)]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return command, {**os.environ, **offline, **variables}


def _vllm(options: ServerOptions, gpu: bool) -> tuple[list[str], Mapping[str, str]]:
    arguments = [
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(options.model), "--served-model-name", "policy", "--dtype", options.dtype),
        *("--max-model-len", str(options.context_tokens), "--max-num-seqs", str(options.max_batch)),
        *("--tensor-parallel-size", str(options.tensor_parallel)),
        *("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--enable-prefix-caching"),
        "--disable-uvicorn-access-log",
    ]
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    if options.weight_sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
    if gpu:
        arguments += ["--gpu-memory-utilization", str(options.gpu_memory_fraction)]
    else:
        # On a CPU, chunked prefill crashes the server for a request with a seed.
        prefill = [
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens",
            str(max(options.context_tokens, 8192)),
        ]
        arguments += ["--enforce-eager", *prefill]
        arguments += ["--worker-extension-cls", WORKER_EXTENSION]
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(_INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        variables["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        if options.threads is not None:
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(options.threads)}
    return arguments, variables


def _sglang(options: ServerOptions, gpu: bool) -> tuple[list[str], Mapping[str, str]]:
    context = options.context_tokens + CONTEXT_SLACK["sglang"]
    arguments = [
        *("-m", "sglang.launch_server", "--model-path", str(options.model), "--dtype", options.dtype),
        *("--context-length", str(context), "--max-running-requests", str(options.max_batch)),
        *("--tp-size", str(options.tensor_parallel), "--skip-server-warmup"),
    ]
    variables = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    if gpu:
        return [*arguments, "--mem-fraction-static", str(options.gpu_memory_fraction)], variables
    arguments += [
        *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--max-total-tokens", str(options.max_batch * context), "--disable-overlap-schedule"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        "--sleep-on-idle",
    ]
    variables["SGLANG_USE_CPU_ENGINE"] = "1"
    if options.threads is not None:
        variables["OMP_NUM_THREADS"] = str(options.threads)
    return arguments, variables


def _require_installed(options: ServerOptions) -> None:
    package = options.kind
    if options.python == Path(sys.executable):
        found = importlib.util.find_spec(package) is not None
    else:
        test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        try:
            found = subprocess.run([options.python, "-c", test], check=False, timeout=60).returncode == 0
        except OSError as error:
            raise EngineError(f"cannot run `engine.python` = {options.python}: {error.strerror}") from error
    if not found:
        raise EngineError(
            f"{package} is not installed for {options.python}: install it into its own environment and "
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
