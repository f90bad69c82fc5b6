"""Output of commands: fields, tables and JSON on stdout."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hone.utils.terminal import SafeConsole
from hone.utils.text import visible

PLAIN_WIDTH = 110  # columns without a terminal


def console() -> SafeConsole:
    out = SafeConsole(highlight=False)
    return out if out.is_terminal else SafeConsole(highlight=False, width=PLAIN_WIDTH)


def print_json(value: object) -> None:
    """Print one JSON document without wrapping or colour."""
    print(json.dumps(value, indent=2, default=_plain))


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one name and value per line; skip values that are None."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None:
            table.add_row(Text(name.replace("_", " ")), Text(_shown(value)))
    console().print(table)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table; numbers are right-aligned."""
    shown = [[_shown(cell) for cell in row] for row in rows]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, header in enumerate(headers):
        numeric = bool(shown) and all(_is_number(row[index]) for row in shown)
        table.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    console().print(table)


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "none"
    return visible(str(value))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"([-+]?[\d.]+(e[-+]?\d+)?( %)?|-?)", text) is not None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
