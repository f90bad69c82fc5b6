"""The command line that starts a server of each kind, as Hone needs it."""

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
_INSIDE = Path(__file__).parent / "inside"  # what servers import
CONTEXT_SLACK = {"vllm": 0, "sglang": RESERVED}  # tokens of context that a kind keeps for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """A server, but for its address."""

    kind: ServerKind
    model: Path
    context_tokens: int
    dtype: Literal["float32", "bfloat16"]
    tensor_parallel: int = 1
    max_batch: int = 256  # requests decoded at the same time
    gpu_memory_fraction: float = 0.85
    weight_sync: Literal["disk", "nccl"] = "disk"
    threads: int | None = None  # of tensor operations on a CPU
    python: Path = Path(sys.executable)  # the interpreter that has the package

    def on(self, python: Path) -> ServerOptions:
        return dataclasses.replace(self, python=python)


def server_command(options: ServerOptions, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """The command and its environment. Raises EngineError when the package is not installed."""
    _require_installed(options)
    gpu = has_gpu()
    build = {"vllm": _vllm, "sglang": _sglang}[options.kind]
    arguments, variables = build(options, gpu)
    if options.kind == "sglang":  # its own choice is the port + 10,000, whether there is such a port or not
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
        # A prompt in pieces crashes a server on a CPU once its request has a seed.
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
            raise EngineError(f"engine.python cannot be run: {options.python}: {error.strerror}") from error
    if not found:
        raise EngineError(
            f"{package} is not installed for {options.python}: install it into an environment of its own and "
            "set engine.python (--python) to its interpreter, or engine.urls to servers that run elsewhere"
        )


def free_port(host: str) -> int:
    """A port that nothing listened at a moment ago."""
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


@contextmanager
def held_port(host: str) -> Generator[int]:
    """A free port which nobody else is given meanwhile.

    A server may listen at it, for this socket does not; it has to set SO_REUSEADDR, as asyncio and vLLM do.
    """
    with closing(socket.socket()) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield holder.getsockname()[1]


def has_gpu() -> bool:
    """Asked of the machine, as the server's interpreter may be another one than this."""
    return any(Path("/dev").glob("nvidia[0-9]*"))
