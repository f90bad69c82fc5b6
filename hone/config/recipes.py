"""Recipes: TOML files that extend each other, overridden by `--set`, checked key by key.

    resolve("quickstart", ["train.steps=3"]) -> RunSettings

Invariant: no key of a user is ignored. An unknown key is an error with the file, the line and the nearest
valid key.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hone.config.bundled import find_recipe, nearest_names
from hone.config.fields import ConfigError, choose, discriminator, nearest, variants_of, walk
from hone.config.run import Command, RunSettings
from hone.config.variables import SYSTEMS, Given, read_variables
from hone.settings import Mark, Settings
from hone.utils.text import as_url

Tree = dict[str, Any]


REMOVED = {
    "train.max_staleness": "it is rollout.max_staleness",
    "engine.in_flight_updates": "it is rollout.partial",
}
"""Removed settings -> reason; using one is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One source of settings: a recipe, one `--set`, or another flag."""

    source: str
    text: str
    values: Tree

    def where(self, path: str) -> str:
        """Return the source, with the line that sets `path` if known."""
        for number, key in _keys(self.text):
            if path == key or path.startswith(key + "."):
                return f"{self.source}, line {number}"
        return self.source


def assign(source: str, path: str, value: Any) -> Layer:
    """Return the layer in which `source`, such as a flag, sets the setting at `path`."""
    return Layer(source=source, text="", values=_nested(path, value))


def resolve(
    path: Path | str | None,
    sets: Sequence[str | Layer] = (),
    *,
    without: Collection[str] = (),
    command: Command | None = None,
) -> RunSettings:
    """Return the settings of a recipe (None: the defaults) with `sets` on top.

    Args:
        path: a TOML file, or the name of a recipe that comes with Hone (see `hone.config.bundled`).
        sets: "a.b=value" as in `--set`, or layers of `assign`.
        without: dotted names of settings to ignore in the recipe.
        command: the command that runs; between recipe and `sets`, it reads the environment variables of the
            recipe's system (see `hone.config.variables`). None: no variable is read.

    Raises ConfigError.
    """
    file = None if path is None else find_recipe(path)
    recipe = [] if file is None else [_without(layer, without) for layer in _layers(file, ())]
    given = _given(recipe, command, "" if file is None else file.stem)
    variables = [assign(each.variable, each.path, each.value) for each in given]
    above = [_parse_set(each) if isinstance(each, str) else each for each in sets]
    layers = [*recipe, *variables, *above]
    for layer in layers:
        _check_keys((RunSettings,), layer.values, layer, "")
    values: Tree = {"run_dir": str(Path("runs") / (file.stem if file else "default"))}
    for layer in layers:
        values = _merge(values, layer.values)
    values = _with_seed(values)
    try:
        settings = RunSettings.model_validate(_with_group_defaults(RunSettings, values))
    except ValidationError as error:
        raise _first_error(error, layers) from None
    overridden = [each for each in given if any(_sets(layer.values, each.path.split(".")) for layer in above)]
    return settings.with_variables({each.path: each.variable for each in given if each not in overridden})


def _given(recipe: Sequence[Layer], command: Command | None, name: str) -> list[Given]:
    """Return what the variables of the recipe's system set; remove `variables` from its layers."""
    system = ""
    for layer in recipe:
        system = layer.values.pop("variables", system)
        if system not in ("", *SYSTEMS):
            raise ConfigError(
                f"{layer.where('variables')}: variables = {system!r}: it must be one of {', '.join(SYSTEMS)}"
            )
    return read_variables(system, command, os.environ, name) if system and command else []


def _without(layer: Layer, without: Collection[str]) -> Layer:
    """Return the layer without some settings."""

    def remaining(values: Tree, prefix: str) -> Tree:
        return {
            name: remaining(value, f"{prefix}{name}.") if isinstance(value, dict) else value
            for name, value in values.items()
            if prefix + name not in without
        }

    return dataclasses.replace(layer, values=remaining(layer.values, ""))


def _with_seed(values: Tree) -> Tree:
    """Set every seed marked RUN_SEED that no recipe sets to the run's seed."""
    if "seed" not in values:
        return values
    for setting in walk(RunSettings):
        if Mark.RUN_SEED in setting.marks:
            values = _merge(_nested(setting.path, values["seed"]), values)
    return values


def _nested(path: str, value: Any) -> Tree:
    """{"a": {"b": value}} for the path "a.b"."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def _layers(path: Path, inside: tuple[Path, ...]) -> Iterator[Layer]:
    """Yield the recipe's parents, the first one first, then the recipe."""
    here = path.resolve()
    if here in inside:
        chain = " -> ".join(p.name for p in (*inside[inside.index(here) :], here))
        raise ConfigError(
            f"{inside[-1].name}: recipes extend each other in a cycle ({chain}): remove one `extends`"
        )
    layer = _read(path)
    extends = layer.values.pop("extends", [])
    for parent in extends if isinstance(extends, list) else [extends]:
        if not isinstance(parent, str):
            raise ConfigError(
                f"{layer.where('extends')}: extends must be a recipe or a list of recipes, in which "
                f"later ones override earlier ones, got {extends!r}"
            )
        file = find_recipe(parent, beside=path.parent)
        if not file.is_file():
            raise ConfigError(
                f"{layer.where('extends')}: extends {parent!r}, which does not exist beside {path} "
                "and does not come with Hone"
            )
        yield from _layers(file, (*inside, here))
    yield layer


def _read(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if url := as_url(path):
            raise ConfigError(
                f"{url} is a URL: download the recipe, and the ones that it extends, and pass its path"
            ) from None
        raise ConfigError(f"there is no recipe {path}{_recipe_hint(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory: pass the recipe file in it") from None
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
    """Return a suggestion for a recipe that does not exist."""
    there = {p.stem: p for p in sorted(path.parent.glob("*.toml"))} if path.parent.is_dir() else {}
    if path.suffix == ".toml" and (meant := nearest(path.stem, there)):
        return f": did you mean {there[meant]}?"
    if names := nearest_names(path.name.removesuffix(".toml")):
        return f": did you mean {' or '.join(names)}? `hone recipes list` lists those that come with Hone"
    return ": pass the path of a TOML file, or a name of `hone recipes list`"


def _parse_set(text: str) -> Layer:
    """Parse `a.b=value`; the value is TOML, or plain text if it does not look like TOML."""
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
    return assign("--set", path, value)


def _check_keys(
    variants: Sequence[type[Settings]], values: Mapping[str, Any], layer: Layer, prefix: str
) -> None:
    """Raise ConfigError for the first key that no variant of the group has."""
    known = {name: info for variant in variants for name, info in variant.model_fields.items()}
    for name, value in values.items():
        path = prefix + name
        if path in REMOVED:
            raise ConfigError(f"{layer.where(path)}: {path} was removed ({REMOVED[path]}): delete the line")
        if name not in known:
            meant = nearest(path, [setting.path for setting in walk(RunSettings)])
            hint = f"did you mean {meant}?" if meant else "`--help-config` lists the valid ones"
            raise ConfigError(f"{layer.where(path)}: unknown key {path}: {hint}")
        inner = variants_of(known[name])
        if not inner:
            continue
        if not isinstance(value, dict):
            keys = ", ".join(dict.fromkeys(key for variant in inner for key in variant.model_fields))
            raise ConfigError(
                f"{layer.where(path)}: {path} is a group, not a value; set one of its keys ({keys})"
            )
        _check_keys(inner, value, layer, path + ".")


def _merge(below: Tree, above: Tree) -> Tree:
    """Return `below` overridden by `above`: tables are merged, other values are replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _with_group_defaults(model: type[Settings], values: Tree) -> Tree:
    """Add the values of a group's default, such as the cosine of `sft.optimizer`, to a partly set group.

    A union group also gets its discriminating field, and only default values of the chosen variant.
    """
    filled = dict(values)
    for name, info in model.model_fields.items():
        if name not in filled or not variants_of(info):
            continue
        group, tag_field = choose(info, filled[name]), discriminator(info)
        if group is None:
            continue  # validation reports the valid kinds
        default = info.get_default()
        if isinstance(default, Settings):
            below = default.model_dump(exclude_unset=True)
            if tag_field:
                below = {key: value for key, value in below.items() if key in group.model_fields}
                below[tag_field] = getattr(default, tag_field)
            filled[name] = _merge(below, filled[name])
        filled[name] = _with_group_defaults(group, filled[name])
    return filled


def _first_error(error: ValidationError, layers: Sequence[Layer]) -> ConfigError:
    """Return one sentence for the first error, with the file and line that set the value."""
    problem = error.errors()[0]
    path, choice = _locate(problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    context = problem.get("ctx", {})
    value, expected = problem["input"], str(context.get("expected", ""))
    if problem["type"] == "union_tag_invalid":  # pydantic locates it at the group
        field = str(context["discriminator"]).strip("'")
        path, value, expected = f"{path}.{field}", context["tag"], context["expected_tags"]
        message = f"it should be {expected}"
    at = path.rpartition(".")[0] if problem["type"] == "missing" else path
    sources = [layer for layer in layers if _sets(layer.values, at.split("."))]
    where = f"{sources[-1].where(at)}: " if sources else ""
    if problem["type"] == "missing":
        return ConfigError(f"{where}{path} is missing: set it in the recipe, or with --set {path}=...")
    if problem["type"] == "extra_forbidden":  # a key of another kind; unknown keys are found before
        return ConfigError(f"{where}{path} has no effect with {choice}: remove it")
    if problem["type"] == "value_error":
        return ConfigError(f"{where}{path}: {message}" if path else message)
    message = message[:1].lower() + message[1:]
    meant = nearest(str(value), re.findall(r"'([^']*)'", expected))
    hint = f"; did you mean {meant!r}?" if meant else ""
    return ConfigError(f"{where}{path} = {value!r}: {message.replace('input', 'it', 1)}{hint}")


def _locate(location: Sequence[int | str]) -> tuple[str, str]:
    """Return a setting's path, and the choice of its union group such as "engine.kind = 'vllm'".

    Pydantic's location also holds the chosen kind, after the name of each union group.
    """
    variants: tuple[type[Settings], ...] = (RunSettings,)
    parts: list[str] = []
    choice, field = "", None
    for part in location:
        if field is not None:
            choice, field = f"{'.'.join(parts)}.{field} = {part!r}", None
        elif part != "[key]":
            parts.append(str(part))
            info = next((v.model_fields[str(part)] for v in variants if part in v.model_fields), None)
            variants = () if info is None else variants_of(info)
            field = None if info is None else discriminator(info)
    return ".".join(parts), choice


def _sets(values: Any, parts: Sequence[str]) -> bool:
    """Return whether a layer sets the setting at `parts`, or a group around it or a setting in it."""
    if not parts or not isinstance(values, dict):
        return True
    return parts[0] in values and _sets(values[parts[0]], parts[1:])


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted key) of each assignment, then of each table header.

    Matches lines by regular expressions, because `tomllib` keeps no positions.
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
