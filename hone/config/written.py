"""Settings as text: the resolved recipe of a run directory, and the fingerprint of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from hone import __version__
from hone.config.fields import discriminator, walk
from hone.config.run import RunSettings
from hone.settings import Mark, Settings

RECIPES = "# Recipes, later ones above: "  # begins the line of a resolved recipe that lists its files


def dump(settings: RunSettings) -> str:
    """Return a recipe that resolves to exactly these settings.

    Values that were set are assignments, with the environment variable that gave them; defaults are comments,
    and so are the recipes that the recipe extends. The file shows all settings.
    """
    lines = [
        f"# Resolved by hone {__version__}. A commented line shows a default.",
        *([f"{RECIPES}{json.dumps(settings.recipes)}"] if len(settings.recipes) > 1 else []),
        *_lines(settings, "", settings.variables),
    ]
    return "\n".join(lines) + "\n"


def fingerprint(settings: RunSettings) -> str:
    """Return a hash (64 hexadecimal digits) that is equal exactly when two runs may share a directory.

    Defaults count like values that were set, and a file that a setting marked FILE_CONTENT names counts by
    its content. Settings marked SAME_RESULTS do not count, and neither does the number of training steps
    while the learning rate does not depend on it: such a run may be continued further.
    """
    counted = result_settings(settings)
    if settings.train.optimizer.schedule == "constant":
        counted.pop("train.steps", None)
    files = [setting.path for setting in walk(RunSettings) if Mark.FILE_CONTENT in setting.marks]
    contents = {path: _digest(counted.get(path)) for path in files}
    return hashlib.sha256(json.dumps([counted, contents], sort_keys=True, default=str).encode()).hexdigest()


def result_settings(settings: RunSettings, *groups: str) -> dict[str, Any]:
    """Return the settings that change results, of some groups or of all: dotted name -> JSON value."""
    return {
        setting.path: value_of(settings, setting.path)
        for setting in walk(RunSettings)
        if not setting.group
        and Mark.SAME_RESULTS not in setting.marks
        and (not groups or setting.path.partition(".")[0] in groups)
    }


def same_results() -> frozenset[str]:
    """Return the dotted names of the settings and groups that do not change results."""
    return frozenset(setting.path for setting in walk(RunSettings) if Mark.SAME_RESULTS in setting.marks)


def _digest(path: Any) -> str | None:
    """Return the hash of a file; None for a value that is not a path, such as the name of a preset."""
    if not isinstance(path, str) or not path or not Path(path).is_file():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def value_of(settings: Settings, path: str) -> Any:
    """Return the value of a setting as TOML and JSON types; None for one of another kind of its group."""
    value: Any = settings
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name, None)  # the attribute belongs to another variant of the group
    return _plain(value)


def _lines(
    settings: Settings, prefix: str, variables: Mapping[str, str], tag_field: str | None = None
) -> Iterator[str]:
    """Yield the TOML lines of a group; the discriminating field is always written."""
    groups: list[tuple[str, Settings, str | None]] = []
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            groups.append((name, value, discriminator(info)))
        elif name == tag_field or (name in settings.model_fields_set and value is not None):
            variable = variables.get(prefix + name)
            yield _assignment(name, value) + (f"  # from ${variable}" if variable else "")
        else:
            shown = f"# {name} = (none)" if value is None else f"# {_assignment(name, value)}"
            yield shown.replace("\n", "\n# ")
    for name, group, field in groups:
        yield f"\n[{prefix}{name}]"
        yield from _lines(group, f"{prefix}{name}.", variables, field)


def _assignment(name: str, value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, dict):
        inner = ", ".join(tomli_w.dumps({key: item}).strip() for key, item in plain.items())
        return f"{name} = {{ {inner} }}"
    return tomli_w.dumps({name: plain}).strip()


def _plain(value: Any) -> Any:
    """Return the value as TOML and JSON types; sets are sorted, so that equal settings have equal text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)
