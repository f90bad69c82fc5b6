"""The run directory, which belongs to one recipe and holds it in resolved form."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hone.config import Command, ConfigError, RunSettings, dump, identity_of, resolve
from hone.policy.settings import ModelSettings
from hone.tasks.errors import first_few
from hone.utils.differences import differences
from hone.utils.errors import writing
from hone.utils.files import check_writable, replace_file, write_file

CONFIG = "config.toml"


def claim(settings: RunSettings) -> None:
    """Bind the run directory to this recipe, or check that it belongs to it.

    Call it when work begins, so that a start that fails leaves the directory to the corrected recipe.

    Raises ConfigError if it belongs to another recipe or cannot be created.
    """
    path = settings.run_dir / CONFIG
    if path.is_file():
        require_own(settings)
        return
    with writing(settings.run_dir, ConfigError):
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        write_file(path, dump(settings))


def require_own(settings: RunSettings) -> None:
    """Raise ConfigError if the run directory belongs to another recipe or cannot be written.

    It need not exist.
    """
    with writing(settings.run_dir, ConfigError):
        check_writable(settings.run_dir)
    path = settings.run_dir / CONFIG
    if not path.is_file():
        return
    if found := differences(identity_of(resolve(path)), identity_of(settings), str(settings.run_dir)):
        raise ConfigError(
            f"{settings.run_dir} belongs to another recipe ({first_few(found, separator='; ')}): run it with "
            f"the values of {settings.run_dir}, or choose another run_dir"
        )


def claimed(settings: RunSettings, command: Command) -> RunSettings:
    """Return the settings that a command claims its run directory with, its start model included."""
    makes_model = command == "train" and settings.makes_model and settings.model is None
    return with_start_model(settings) if makes_model or command == "quickstart" else settings


def with_start_model(settings: RunSettings) -> RunSettings:
    """Return the settings with the model that the run makes."""
    return with_model(settings, settings.run_dir / "start")


def with_model(settings: RunSettings, path: Path) -> RunSettings:
    """Return the settings with the model in the folder `path`."""
    model = settings.model or ModelSettings(path=path)
    return settings.model_copy(update={"model": model.model_copy(update={"path": path, "revision": None})})


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
