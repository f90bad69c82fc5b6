"""The recipe of a run, and how it differs from the defaults or from that of another run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from hone.config import RunSettings
from hone.config.fields import walk
from hone.config.written import RECIPES
from hone.view.reader import RunReader
from hone.view.records import Difference


def parents(reader: RunReader) -> tuple[Path, ...]:
    """Return the recipes that a run's recipe extends, later ones above; () without any on this machine."""
    for line in reader.recipe().split("\n"):
        if line.startswith(RECIPES):
            files = tuple(Path(str(file)) for file in json.loads(line.removeprefix(RECIPES)))[:-1]
            return files if all(file.is_file() for file in files) else ()
    return ()


def differences(reader: RunReader) -> tuple[Difference, ...]:
    """Return the settings whose value is not that of the parent recipes, or not the default without any."""
    values, below = values_of(reader), _defaults()
    defaults = dict(below)
    for file in parents(reader):
        own = dict(_leaves(_toml(file.read_text(encoding="utf-8")), ""))
        below |= {key: as_text(value) for key, value in own.items() if key not in ("extends", "variables")}
    every = [*values, *(key for key in below if key not in values and below[key] != defaults.get(key, ""))]
    found = ((key, values.get(key, defaults.get(key, "")), below.get(key, "")) for key in every)
    return tuple(Difference(key=key, value=own, other=other) for key, own, other in found if own != other)


def differences_between(
    readers: Sequence[RunReader],
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the settings whose values differ among runs: (key, value in each run)."""
    defaults, every = _defaults(), [values_of(reader) for reader in readers]
    keys = dict.fromkeys(key for values in every for key in values)
    rows = ((key, tuple(values.get(key, defaults.get(key, "")) for values in every)) for key in keys)
    return tuple((key, values) for key, values in rows if len(set(values)) > 1 and key != "run_dir")


def values_of(reader: RunReader) -> dict[str, str]:
    """Return dotted key -> value as text of the settings that a run's resolved recipe sets.

    Read as plain values, so that a recipe of another version of Hone can be shown too.
    """
    return {key: as_text(value) for key, value in _leaves(reader.values(), "")}


def as_text(value: Any) -> str:
    """Return a setting's value as JSON; "" for none, and for an empty group."""
    return "" if value is None or value == {} else json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, Set) else str(value)


def _defaults() -> dict[str, str]:
    plain = ((s.path, s.default) for s in walk(RunSettings) if not s.group and s.default is not ...)
    return {path: as_text(default) for path, default in plain}


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
