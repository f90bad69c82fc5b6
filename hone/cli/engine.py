"""`hone engine serve`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from hone.launch.reporter import Reporter

app = typer.Typer(
    help="Serve a model to runs and evaluations.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.callback()
def engine() -> None:
    """Serve a model to runs and evaluations."""


KindOption = Annotated[Literal["vllm", "sglang"], typer.Option("--kind", help="Engine server to start.")]
PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")]
HostOption = Annotated[
    str, typer.Option("--host", help="Address to listen on; every client can change the weights.")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        help="Maximum length of prompt and reply together, in tokens; default: the model's, at most 32768.",
    ),
]


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model.")],
    kind: KindOption = "vllm",
    port: PortOption = 8000,
    host: HostOption = "127.0.0.1",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size (GPUs).")] = 1,
    context: ContextOption = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Data type of the weights; auto: bfloat16 on a GPU, else float32."),
    ] = "auto",
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum requests in one batch.")] = 256,
    gpu_memory_fraction: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="Fraction of each GPU's memory to use."),
    ] = 0.85,
    weight_sync: Annotated[
        Literal["disk", "nccl"], typer.Option(help="How the trainer sends new weights.")
    ] = "disk",
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Python interpreter with vLLM or SGLang installed."),
    ] = None,
    ready_timeout_s: Annotated[float, typer.Option(min=1, help="Seconds until the start fails.")] = 900.0,
) -> None:
    """Serve a model with vLLM or SGLang, with the flags that Hone needs, until Ctrl-C.

    Prints the address once the server is ready and its log-probabilities passed a check.

    [bold]Example[/bold]: hone engine serve models/Qwen3-8B --kind vllm --port 8000 --tp 2 --context 32768
    """
    import asyncio

    from hone.cli.options import run_with_progress
    from hone.launch.engine import default_context
    from hone.launch.engine import serve as run
    from hone.policy.engines.command import has_gpu
    from hone.policy.settings import ModelSettings, ServerEngineSettings
    from hone.utils.files import default_cache_dir

    context_tokens = default_context(model) if context is None else context
    served = ModelSettings(
        path=model.resolve(),
        dtype=("bfloat16" if has_gpu() else "float32") if dtype == "auto" else dtype,
    )
    settings = ServerEngineSettings(
        kind=kind,
        context_tokens=context_tokens,
        tensor_parallel=tp,
        max_batch=max_batch,
        gpu_memory_fraction=gpu_memory_fraction,
        weight_sync=weight_sync,
        python=python,
        ready_timeout_s=ready_timeout_s,
    )
    log = default_cache_dir() / "engines" / f"{kind}-{port}.log"

    def job(reporter: Reporter) -> None:
        def on_ready(url: str) -> None:
            reporter.note(f"{url} serves {model} (log: {log}). Ctrl-C stops it. Flags for other commands:")
            reporter.note(
                f"--set engine.kind={kind} --set 'engine.urls=[\"{url}\"]' "
                f"--set engine.context_tokens={context_tokens}"
            )

        with reporter.stage(f"serving {model}") as stage:
            say = stage.set_status
            asyncio.run(run(settings, served, host, port, log=log, say=say, on_ready=on_ready))

    run_with_progress(job)
