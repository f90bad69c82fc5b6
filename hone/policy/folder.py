"""What the folder of a Hugging Face model says of it, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from hone.policy.errors import PolicyError

DEFAULT_CONTEXT = 32768  # tokens, at most, where nobody says how long contexts may be


def read_config(folder: Path) -> dict[str, Any]:
    """The language model's part of config.json: its `text_config`, where the model also sees or hears.

    Raises PolicyError for a folder that is not there, holds none, or one that describes no model.
    """
    if not folder.is_dir():
        raise PolicyError(f"there is no model folder {folder}: give the folder of a Hugging Face model")
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(f"{folder} holds no config.json: give the folder of a Hugging Face model")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise PolicyError(f"{path} is not JSON ({error}): copy it again") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{path} describes no model: copy it again")
    config = cast("dict[str, Any]", config)
    return config.get("text_config") or config


def longest_context(folder: Path) -> int | None:
    """Tokens that the model has positions for; None where its config does not say. Raises PolicyError."""
    found = read_config(folder).get("max_position_embeddings")
    return found if isinstance(found, int) else None
