"""Build the command line that starts a vLLM or SGLang server with the flags that Hone needs."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from hone.policy.engine import EngineError
from hone.policy.engines.sglang import RESERVED
from hone.policy.engines.vllm import WORKER_EXTENSION
from hone.policy.settings import ModelSettings, ServerEngineSettings

_INSIDE = Path(__file__).parent / "inside"  # modules that servers import
CONTEXT_SLACK = {"vllm": 0, "sglang": RESERVED}  # context tokens that a server reserves


def server_command(
    settings: ServerEngineSettings, model: ModelSettings, host: str, port: int
) -> tuple[list[str], dict[str, str]]:
    """Return the command and its environment. Raises EngineError if the package is not installed."""
    python = settings.python or Path(sys.executable)
    _require_installed(settings.kind, python)
    gpu = has_gpu()
    build = {"vllm": _vllm, "sglang": _sglang}[settings.kind]
    arguments, variables = build(settings, model, gpu)
    if settings.kind == "sglang":  # its default, port + 10,000, may exceed 65,535
        variables = {**variables, "SGLANG_GRPC_PORT": str(free_port(host))}
    command = [str(python), *arguments, "--host", host, "--port", str(port)]
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
        "--disable-uvicorn-access-log",
    ]
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    if settings.weight_sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
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
        arguments += ["--worker-extension-cls", WORKER_EXTENSION]
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(_INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
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
    if gpu:
        return [*arguments, "--mem-fraction-static", str(settings.gpu_memory_fraction)], variables
    arguments += [
        *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--max-total-tokens", str(settings.max_batch * context), "--disable-overlap-schedule"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        "--sleep-on-idle",
    ]
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
