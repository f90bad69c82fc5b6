"""Recipes inside the package, found by name: `swe-8b` is the file swe-8b.toml of `FOLDER`.

find_recipe("swe-8b") -> .../hone/recipes/swe-8b.toml
find_recipe("mine.toml") -> mine.toml
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "recipes"
SHARED = "shared/"  # the names of what recipes have in common begin so
_PLAN = re.compile(r"^#   hone plan \S+ --gpus (\d+)((?: --\S+ \S+)*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledRecipe:
    """A recipe that comes with Hone, as its comments describe it."""

    name: str
    path: Path
    hardware: str
    """The machines that it is planned for, such as "2 x 8 GPUs of 80 GiB"."""
    description: str
    """Its first line."""


def bundled_recipes() -> list[BundledRecipe]:
    """Return the recipes that come with Hone, by name, without the parts that they share."""
    files = sorted(bundled_files().items())
    return [_describe(name, path) for name, path in files if not name.startswith(SHARED)]


def bundled_files() -> dict[str, Path]:
    """Return name -> file of every recipe that comes with Hone, and of the parts that they share."""
    return {
        path.relative_to(FOLDER).as_posix().removesuffix(".toml"): path for path in FOLDER.rglob("*.toml")
    }


def find_recipe(given: Path | str, beside: Path | None = None) -> Path:
    """Return the file that `given` means: the one at this path, else the bundled recipe of this name.

    Args:
        beside: folder that a relative path starts from; None: the current directory.

    If there is neither, returns the path.
    """
    path = Path(given) if beside is None else beside / given
    return path if path.is_file() else bundled_files().get(str(given), path)


def nearest_names(name: str) -> list[str]:
    """Return the bundled recipe `name`, or at most three with a similar name, the nearest first."""
    names = [each for each in bundled_files() if not each.startswith(SHARED)]
    return [name] if name in names else difflib.get_close_matches(name, names, n=3, cutoff=0.6)


def _describe(name: str, path: Path) -> BundledRecipe:
    text = path.read_text(encoding="utf-8")
    planned = _PLAN.search(text)
    if planned is None:
        raise ValueError(f"{path} has no comment `#   hone plan {name} --gpus N ...`")
    gpus, options = int(planned[1]), dict(re.findall(r"--(\S+) (\S+)", planned[2]))
    hardware = "CPU"
    if gpus:
        machines = f"{options['nodes']} x " if "nodes" in options else ""
        hardware = f"{machines}{gpus} GPU{'s' * (gpus > 1)} of {options.get('gpu-memory', '80')} GiB"
    first = text.partition("\n")[0]
    return BundledRecipe(name=name, path=path, hardware=hardware, description=first.removeprefix("# "))
