"""The recipe of a run, and how it differs from the defaults or from that of another run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hone.config import RunSettings
from hone.config.fields import walk
from hone.view.reader import RunReader
from hone.view.records import Difference


def differences(reader: RunReader) -> tuple[Difference, ...]:
    """Return the settings of a run that are not the defaults."""
    values, defaults = values_of(reader), _defaults()
    return tuple(
        Difference(key=key, value=value, other=defaults.get(key, ""))
        for key, value in values.items()
        if value != defaults.get(key, "")
    )


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
    """Return a setting's value as a recipe would write it; "" for none."""
    return "" if value is None or value == {} else json.dumps(value, ensure_ascii=False, default=str)


def _defaults() -> dict[str, str]:
    from hone.config.written import value_of

    plain = ((s.path, s.default) for s in walk(RunSettings) if not s.group and s.default is not ...)
    return {path: as_text(value_of(_One(default), "value")) for path, default in plain}


class _One:
    """Holds one value, for `value_of`, which makes TOML types of an attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
