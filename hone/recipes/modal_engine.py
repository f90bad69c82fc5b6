"""A vLLM server in Modal's cloud, for evaluations: one to four containers with an A100 each.

    modal secret create huggingface HF_TOKEN=...
    MODEL_NAME=Qwen/Qwen3-Coder-30B-A3B-Instruct modal deploy recipes/modal_engine.py
    hone eval RECIPE --set model.path=FOLDER --set engine.kind=vllm --set 'engine.urls=["https://..."]'
    modal app stop hone-engine

MODEL_NAME and MAX_MODEL_LEN are read when it is deployed; `model.path` is a folder with the same tokenizer.
Replies are passed on as they come. Containers do not share a disk with a trainer, so nothing is trained here.
"""

import os
import subprocess
from pathlib import Path

import modal

PORT = 8000
VARIABLES = {
    "MODEL_NAME": os.environ.get("MODEL_NAME", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    "MAX_MODEL_LEN": os.environ.get("MAX_MODEL_LEN", "32768"),
}

app = modal.App("hone-engine")
image = (
    modal.Image.debian_slim(python_version="3.11")
    .uv_pip_install("vllm==0.32.0")
    .env({**VARIABLES, "HF_HOME": "/cache"})
    .add_local_python_source("hone")
)


@app.function(
    image=image,
    gpu="A100-80GB",
    timeout=14_400,
    scaledown_window=900,
    min_containers=1,
    max_containers=4,
    secrets=[modal.Secret.from_name("huggingface", required_keys=["HF_TOKEN"])],
    volumes={"/cache": modal.Volume.from_name("hone-models", create_if_missing=True)},
)
@modal.concurrent(max_inputs=256)
@modal.web_server(port=PORT, startup_timeout=1_800)
def serve() -> None:
    """Runs in the container; /health answers once the model is loaded."""
    from hone.policy.engines.managed_server import server_command
    from hone.policy.settings import ModelSettings, ServerEngineSettings

    settings = ServerEngineSettings(
        kind="vllm", context_tokens=int(os.environ["MAX_MODEL_LEN"]), max_batch=256
    )
    model = ModelSettings(path=Path(os.environ["MODEL_NAME"]), dtype="bfloat16")
    command, environment = server_command(settings, model, "0.0.0.0", PORT)  # noqa: S104
    subprocess.Popen(command, env={**environment, "HF_HUB_OFFLINE": "0"})
