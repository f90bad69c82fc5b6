"""The run directory: claimed by one process and one recipe, with the resolved recipe in it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hone.config import ConfigError, RunSettings, dump, fingerprint, resolve

CONFIG = "config.toml"


def claim(settings: RunSettings) -> None:
    """Make the run directory, or recognise it as this recipe's.

    Raises ConfigError when it belongs to another recipe, or cannot be made.
    """
    mine = fingerprint(settings)
    path = settings.run_dir / CONFIG
    if path.is_file():
        if fingerprint(resolve(path)) != mine:
            raise ConfigError(
                f"{settings.run_dir} belongs to another recipe ({path} differs): run with that one, or "
                "choose another run_dir"
            )
        return
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{CONFIG}.partial")
        partial.write_text(dump(settings))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{settings.run_dir} cannot be written: {error.strerror}") from error


def replace_symlink(link: Path, target: Path) -> Path:
    """Make `link` a relative symbolic link to `target`, at once if it exists already; returns `link`."""
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(target, link.parent))
    partial.replace(link)
    return link


def weights_digest(model: Path) -> str:
    """Changes whenever the files of a model folder do: names, sizes and times of change, as a digest."""
    files = sorted(p for p in model.iterdir() if p.suffix in (".safetensors", ".json", ".jinja"))
    listing = "\n".join(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files)
    return hashlib.sha256(listing.encode()).hexdigest()
