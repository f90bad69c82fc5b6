"""Read the configuration of a Hugging Face model folder without loading the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from hone.policy.errors import PolicyError

DEFAULT_CONTEXT = 32768  # maximum tokens if neither settings nor model define a context length


def read_config(folder: Path) -> dict[str, Any]:
    """Return the language model's part of config.json: `text_config` for a multimodal model.

    Raises PolicyError if the folder or its config.json is missing or invalid.
    """
    if not folder.is_dir():
        raise PolicyError(f"there is no model folder {folder}: pass the folder of a Hugging Face model")
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(f"{folder} has no config.json: pass the folder of a Hugging Face model")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise PolicyError(f"{path} is not JSON ({error}): copy it again") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{path} is not a JSON object: copy it again")
    config = cast("dict[str, Any]", config)
    return config.get("text_config") or config


def longest_context(folder: Path) -> int | None:
    """Return the model's `max_position_embeddings`; None if its config has none. Raises PolicyError."""
    found = read_config(folder).get("max_position_embeddings")
    return found if isinstance(found, int) else None
