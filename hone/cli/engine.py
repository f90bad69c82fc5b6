"""`hone engine serve`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.options import parameters_of, run_with_progress

if TYPE_CHECKING:
    from hone.launch.reporter import Reporter

app = typer.Typer(
    help="Serve a model to runs and evaluations.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.callback()
def engine() -> None:
    """Serve a model to runs and evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The command line of `hone engine serve`."""

    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model, or its name on the hub.")
    ]
    kind: Annotated[Literal["vllm", "sglang"], typer.Option(help="Engine server to start.")] = "vllm"
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000
    host: Annotated[str, typer.Option(help="Address to listen on; every client can change the weights.")] = (
        "127.0.0.1"
    )
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size (GPUs).")] = 1
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum length of prompt and reply together, in tokens; default: the model's, at most "
            "32768.",
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Data type of the weights; auto: bfloat16 on a GPU, else float32."),
    ] = "auto"
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum requests in one batch.")] = 256
    gpu_memory_fraction: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Fraction of each GPU's memory to use.")
    ] = 0.85
    weight_sync: Annotated[
        Literal["disk", "nccl", "adapter"], typer.Option(help="How the trainer sends new weights.")
    ] = "disk"
    adapter_rank: Annotated[
        int | None,
        typer.Option(min=1, max=512, help="Largest rank of adapters with --weight-sync adapter; default 16."),
    ] = None
    python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Python interpreter with vLLM or SGLang installed.")
    ] = None
    ready_timeout_s: Annotated[float, typer.Option(min=1, help="Seconds until the start fails.")] = 900.0


@app.command()
@parameters_of(Flags)
def serve(flags: Flags) -> None:
    """Serve a model with vLLM or SGLang, with the flags that Hone needs, until Ctrl-C.

    Prints the address once the server is ready and its log-probabilities passed a check.

    [bold]Example[/bold]: hone engine serve models/Qwen3-8B --kind vllm --port 8000 --tp 2 --context 32768
    """
    import asyncio

    from hone.launch.engine import default_context, local_folder
    from hone.launch.engine import serve as run
    from hone.policy.engines.managed_server import has_gpu
    from hone.policy.settings import ModelSettings, ServerEngineSettings
    from hone.utils.files import default_cache_dir

    folder = local_folder(flags.model)
    context_tokens = flags.context or default_context(folder)
    served = ModelSettings(
        path=folder,
        dtype=("bfloat16" if has_gpu() else "float32") if flags.dtype == "auto" else flags.dtype,
    )
    settings = ServerEngineSettings(
        kind=flags.kind,
        context_tokens=context_tokens,
        tensor_parallel=flags.tp,
        max_batch=flags.max_batch,
        gpu_memory_fraction=flags.gpu_memory_fraction,
        weight_sync=flags.weight_sync,
        python=flags.python,
        ready_timeout_s=flags.ready_timeout_s,
    )
    if flags.adapter_rank is not None:
        settings = ServerEngineSettings(
            **settings.model_dump(exclude_unset=True), adapter_rank=flags.adapter_rank
        )
    log = default_cache_dir() / "engines" / f"{flags.kind}-{flags.port}.log"

    def job(reporter: Reporter) -> None:
        def on_ready(url: str) -> None:
            reporter.note(f"{url} serves {flags.model} (log: {log}). Ctrl-C stops it.")
            reporter.note("Flags for other commands:")
            reporter.note(
                f"--set engine.kind={flags.kind} --set 'engine.urls=[\"{url}\"]' "
                f"--set engine.context_tokens={context_tokens}"
            )

        with reporter.stage(f"serving {flags.model}") as stage:
            say = stage.set_status
            asyncio.run(run(settings, served, flags.host, flags.port, log=log, say=say, on_ready=on_ready))

    run_with_progress(job)
