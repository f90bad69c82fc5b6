"""Records as JSON values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

_PLAIN = {str, int, bool, type(None)}


def to_json(value: Any) -> str:
    """Return records as JSON in ASCII: a lone surrogate, which UTF-8 does not have, stays an escape."""
    return json.dumps(json_ready(value), separators=(",", ":"))


def json_ready(value: Any) -> Any:
    """Return a record, or a value inside of one, as JSON values; a number that is not finite becomes null.

    Raises TypeError for a value that has no JSON form.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(json_ready(key)): json_ready(v) for key, v in value.items()
        }
    if isinstance(value, (Sequence, Set)) and not isinstance(value, bytes):
        return [
            each if (kind := type(each)) in _PLAIN or (kind is float and isfinite(each)) else json_ready(each)
            for each in value  # columns of 100,000 tokens: most values need no call
        ]
    if isinstance(value, (np.generic, np.ndarray)):
        return json_ready(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_ready(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
