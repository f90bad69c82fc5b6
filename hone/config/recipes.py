"""Recipes: TOML files, one on top of another, `--set` on top of all, checked key by key.

    resolve("recipes/quickstart.toml", ["train.steps=3"]) -> RunSettings

The rule that must not break: nothing a user writes is ignored. An unknown key is an error that names the
file, the line and the nearest valid key.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hone.config.errors import ConfigError
from hone.config.fields import group_of, nearest, walk
from hone.config.run import RunSettings
from hone.settings import Settings

Tree = dict[str, Any]

SEEDS = (
    ("tasks", "seed"),
    ("tiny_model", "seed"),
    ("demonstrations", "agent", "seed"),
    ("agent", "seed"),
    ("sft", "seed"),
    ("train", "batch", "seed"),
)
"""The seeds of the groups, which follow the run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One source of settings: a recipe, or one `--set`."""

    source: str
    text: str
    values: Tree

    def where(self, path: str) -> str:
        """The source, with the line that sets `path` where it can be told."""
        for number, key in _keys(self.text):
            if path == key or path.startswith(key + "."):
                return f"{self.source}, line {number}"
        return self.source


def resolve(
    path: Path | str | None, sets: Sequence[str] = (), *, without: Collection[str] = ()
) -> RunSettings:
    """The settings of a recipe, or the defaults, with `sets` ("a.b=value") on top. Raises ConfigError.

    `without` are settings, by their dotted names, that do not count where the recipe sets them.
    """
    recipe = [] if path is None else [_left(layer, without) for layer in _layers(Path(path), ())]
    layers = [*recipe, *(_parse_set(text) for text in sets)]
    for layer in layers:
        _check_keys(RunSettings, layer.values, layer, "")
    values: Tree = {"run_dir": str(Path("runs") / (Path(path).stem if path else "default"))}
    for layer in layers:
        values = _merge(values, layer.values)
    values = _with_seed(values)
    try:
        return RunSettings.model_validate(_with_group_defaults(RunSettings, values))
    except ValidationError as error:
        raise _explained(error, layers) from None


def _left(layer: Layer, without: Collection[str]) -> Layer:
    """The layer, less some of its settings."""

    def left(values: Tree, prefix: str) -> Tree:
        return {
            name: left(value, f"{prefix}{name}.") if isinstance(value, dict) else value
            for name, value in values.items()
            if prefix + name not in without
        }

    return dataclasses.replace(layer, values=left(layer.values, ""))


def _with_seed(values: Tree) -> Tree:
    """The run's seed is the seed of every group that names none of its own."""
    if "seed" not in values:
        return values
    for path in SEEDS:
        inner: Tree = {path[-1]: values["seed"]}
        for name in reversed(path[:-1]):
            inner = {name: inner}
        values = _merge(inner, values)
    return values


def _layers(path: Path, inside: tuple[Path, ...]) -> Iterator[Layer]:
    """The recipe's ancestors, eldest first, then itself."""
    here = path.resolve()
    if here in inside:
        chain = " -> ".join(p.name for p in (*inside[inside.index(here) :], here))
        raise ConfigError(
            f"{inside[-1].name}: recipes extend each other in a circle ({chain}); cut one `extends`"
        )
    layer = _read(path)
    extends = layer.values.pop("extends", [])
    for parent in extends if isinstance(extends, list) else [extends]:
        if not isinstance(parent, str):
            raise ConfigError(
                f"{layer.where('extends')}: extends must be the path of a recipe, or a list of paths of "
                f"which a later one is on top, got {extends!r}"
            )
        if not (path.parent / parent).is_file():
            raise ConfigError(
                f"{layer.where('extends')}: extends {parent!r}, which is not there (looked beside {path})"
            )
        yield from _layers(path.parent / parent, (*inside, here))
    yield layer


def _read(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe {path}{_recipe_hint(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory: name the recipe file in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: a recipe is a TOML file") from None
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if not values:
        raise ConfigError(f"{path} is empty: a recipe sets at least one key; `--help-config` lists them all")
    return Layer(source=str(path), text=text, values=values)


def _recipe_hint(path: Path) -> str:
    """What the user may have meant by a recipe that is not there."""
    for folder in (path.parent, Path("recipes")):
        there = {p.stem: p for p in sorted(folder.glob("*.toml"))} if folder.is_dir() else {}
        meant = nearest(path.stem, there)
        if meant:
            return f": did you mean {there[meant]}?"
    return ": give the path of a TOML file, such as recipes/quickstart.toml"


def _parse_set(text: str) -> Layer:
    """`a.b=value`, the value in TOML's syntax, or plain text where it does not look like TOML."""
    path, equals, raw = text.partition("=")
    path, raw = path.strip(), raw.strip()
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", path):
        raise ConfigError(f"--set {text!r} is not of the form a.b=value, such as train.steps=20")
    value: Any = raw
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError as error:
        if raw[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"--set {path}: {raw} is not a valid TOML value: {error}") from None
    for key in reversed(path.split(".")):
        value = {key: value}
    return Layer(source="--set", text="", values=value)


def _check_keys(model: type[Settings], values: Mapping[str, Any], layer: Layer, prefix: str) -> None:
    """Raises ConfigError at the first key that is not a setting."""
    for name, value in values.items():
        path = prefix + name
        if name not in model.model_fields:
            meant = nearest(path, [setting.path for setting in walk(RunSettings)])
            hint = f"did you mean {meant}?" if meant else "`--help-config` lists the valid ones"
            raise ConfigError(f"{layer.where(path)}: unknown key {path}: {hint}")
        group = group_of(model.model_fields[name])
        if group is None:
            continue
        if not isinstance(value, dict):
            keys = ", ".join(group.model_fields)
            raise ConfigError(
                f"{layer.where(path)}: {path} is a group, not a value; set one of its keys ({keys})"
            )
        _check_keys(group, value, layer, path + ".")


def _merge(below: Tree, above: Tree) -> Tree:
    """`above` on top of `below`: tables are merged, every other value replaces what was there."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _with_group_defaults(model: type[Settings], values: Tree) -> Tree:
    """Add what a group's own default sets, such as the cosine of `sft.optimizer`, to a group set in part."""
    filled = dict(values)
    for name, info in model.model_fields.items():
        group = group_of(info)
        if group is None or name not in filled:
            continue
        default = info.get_default()
        if isinstance(default, Settings):
            filled[name] = _merge(default.model_dump(exclude_unset=True), filled[name])
        filled[name] = _with_group_defaults(group, filled[name])
    return filled


def _explained(error: ValidationError, layers: Sequence[Layer]) -> ConfigError:
    """One sentence for the first thing that is wrong, with the place that set it."""
    problem = error.errors()[0]
    path = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    at = path.rpartition(".")[0] if problem["type"] == "missing" else path
    sources = [layer for layer in layers if _sets(layer.values, at.split("."))]
    where = f"{sources[-1].where(at)}: " if sources else ""
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return ConfigError(f"{where}{path} is missing: set it in the recipe, or with --set {path}=...")
    if problem["type"] == "value_error":
        return ConfigError(f"{where}{path}: {message}")
    message = message[:1].lower() + message[1:]
    choices = re.findall(r"'([^']*)'", str(problem.get("ctx", {}).get("expected", "")))
    meant = nearest(str(problem["input"]), choices)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return ConfigError(f"{where}{path} = {problem['input']!r}: {message.replace('input', 'it', 1)}{hint}")


def _sets(values: Any, parts: Sequence[str]) -> bool:
    """Whether a layer sets the setting at `parts`, or something below or above it."""
    if not parts or not isinstance(values, dict):
        return True
    return parts[0] in values and _sets(values[parts[0]], parts[1:])


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted key) of each assignment, then of each table header.

    Read from the lines' shapes, as the TOML parser of the standard library does not keep positions.
    """
    headers: list[tuple[int, str]] = []
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.\s-]+?)\s*\]", line):
            table = re.sub(r"\s", "", header[1]) + "."
            headers.append((number, table[:-1]))
        elif key := re.match(r"\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*=", line):
            yield number, table + re.sub(r"\s", "", key[1])
    yield from headers
