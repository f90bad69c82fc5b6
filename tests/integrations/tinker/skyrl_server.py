"""SkyRL's own Tinker server on a CPU, with its engine beside it: python skyrl_server.py MODEL DIRECTORY PORT.

Runs in an environment of SkyRL, not in Hone's. The server starts its engine with a package manager that
downloads an environment; here it is started with the interpreter that runs this file.
"""

# pyright: reportMissingImports=false
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig


def main(model: str, directory: Path, port: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)

    def engine_command(_parent: Any, config: Any) -> list[str]:
        return [sys.executable, "-m", "skyrl.tinker.engine", *api.config_to_argv(config)]

    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        checkpoints_base=str(directory / "checkpoints"),
        database_url=f"sqlite:///{directory}/tinker.db",
        backend_config={
            "max_lora_adapters": 16,
            "max_lora_rank": 16,
            "train_micro_batch_size": 1,  # of one shape, so that less is compiled
            "sample_max_num_sequences": 24,
        },
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), int(sys.argv[3]))
