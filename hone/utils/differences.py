"""Where two JSON documents differ, as texts for a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_SHOWN_CHARACTERS = 60  # of a value
_ABSENT = object()


def differences(there: Any, here: Any, where: str) -> list[str]:
    """Return one text for each value that differs, by its dotted key.

    Example: "train.optimizer.lr: 1e-05 here, 3e-05 in runs/x", with `where` = "runs/x".
    """
    return [f"{name}: {_shown(new)} here, {_shown(old)} in {where}" for name, old, new in _walk(there, here)]


def _walk(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{name}.{key}" if name else str(key)
            yield from _walk(there.get(key, _ABSENT), here.get(key, _ABSENT), inner)
    elif there != here:
        yield name, there, here


def _shown(value: Any) -> str:
    text = "absent" if value is _ABSENT or value is None else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
