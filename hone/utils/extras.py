"""The extras of Hone: which one installs a package, and the error where it is not installed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from hone.utils.errors import HoneError

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "datasets": "datasets",
    "swebench": "swebench",
    "minisweagent": "mini-swe-agent",
}
"""Package -> the extra of Hone that installs it."""


class MissingExtra(HoneError):
    """A package of an extra is not installed; the message says how to install it."""


@contextmanager
def extras_of(caller: str) -> Generator[None]:
    """Raise MissingExtra, which names `caller`, where a package of an extra cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra(f"{caller} needs {package}: pip install 'hone-rl[{EXTRAS[package]}]'") from error
