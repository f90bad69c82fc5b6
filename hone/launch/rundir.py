"""The run directory, which belongs to one recipe and holds it in resolved form."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hone.config import ConfigError, RunSettings, dump, fingerprint, resolve
from hone.utils.errors import writing
from hone.utils.files import replace_file, write_file

CONFIG = "config.toml"


def claim(settings: RunSettings) -> None:
    """Create the run directory, or check that it belongs to this recipe.

    Raises ConfigError if it belongs to another recipe or cannot be created.
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
    with writing(settings.run_dir, ConfigError):
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        write_file(path, dump(settings))


def replace_symlink(link: Path, target: Path) -> Path:
    """Make `link` a relative symbolic link to `target`, atomically; return `link`."""
    with replace_file(link) as partial:
        partial.symlink_to(os.path.relpath(target, link.parent))
    return link


def weights_digest(model: Path) -> str:
    """Return a hash of the names, sizes and modification times of a model folder's files."""
    files = sorted(p for p in model.iterdir() if p.suffix in (".safetensors", ".json", ".jinja"))
    listing = "\n".join(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files)
    return hashlib.sha256(listing.encode()).hexdigest()
