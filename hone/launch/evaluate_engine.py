"""Settings of the engine at an address, for `hone eval` and `hone.run` (`--engine`, `engine=` and so on)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hone.policy.errors import PolicyError
from hone.utils.errors import UsageError

if TYPE_CHECKING:
    from hone.launch.engine import Endpoint, Served

LOCAL = "local"
Kind = Literal["vllm", "sglang", "openai"]
REPLY_TOKENS = 4096  # without a recipe, at most, and at most a quarter of the context

Given = dict[str, tuple[str, Any]]  # setting -> (the flag, the value)


def engine_settings(
    engine: str | None, kind: Kind | None, model: str | None, *, key_env: str | None, no_recipe: bool
) -> tuple[Given, list[str]]:
    """Return the settings of the three flags, and defaults below them; queries the server.

    Args:
        key_env: environment variable with the server's key.
        no_recipe: True if no recipe sets the lengths of contexts and replies.

    Raises UsageError, and EngineError when the server does not answer.
    """
    from hone.launch.engine import local_folder
    from hone.policy.model import DEFAULT_CONTEXT, longest_context

    if engine is None or engine == LOCAL:
        if kind is not None:
            raise UsageError("--engine-kind needs the address of a server: add --engine URL")
        given: Given = {} if engine is None else {"engine.kind": ("--engine", LOCAL)}
        if model is not None:
            given["model.path"] = ("--model", model)
        if not no_recipe or model is None:
            return given, []
        try:
            longest = longest_context(local_folder(Path(model)))
        except PolicyError as error:
            raise UsageError(f"model {model}: {error}") from None
        return given, _lengths(min(longest or DEFAULT_CONTEXT, DEFAULT_CONTEXT))
    if not engine.startswith(("http://", "https://")):
        raise UsageError(f"engine {engine} is neither `local` nor an address such as http://host:8000")
    from hone.launch.engine import find_endpoint

    endpoint = find_endpoint(engine, kind, key=os.environ.get(key_env) if key_env else None)
    served = _chosen(endpoint, model)
    given = {"engine.kind": ("--engine", endpoint.kind), "engine.urls": ("--engine", [endpoint.url])}
    if endpoint.kind == "openai":
        given["engine.model_name"] = ("--model", served.name if served else model)
    elif folder := _folder(endpoint, served, model, no_recipe=no_recipe):
        given["model.path"] = ("--model", folder)
    told = served.context_tokens if served else None
    return given, _lengths(told or DEFAULT_CONTEXT) if no_recipe else []


def replaced_settings(agent: str | None, *, engine: bool) -> list[str]:
    """Return the recipe's settings that an agent of the kind `agent`, and another engine, replace.

    The agent replaces settings of other agents; the engine all engine settings except the context.
    """
    from hone.config import RunSettings, walk

    names: list[str] = []
    for setting in walk(RunSettings):
        group, _, name = setting.path.partition(".")
        of_agent = agent is not None and group == "agent" and setting.kinds and agent not in setting.kinds
        of_engine = engine and group == "engine" and name not in ("", "context_tokens")
        if of_agent or of_engine:
            names.append(setting.path)
    return names


def _chosen(endpoint: Endpoint, model: str | None) -> Served | None:
    """Return the chosen model of the server; None if the server lists none. Raises UsageError."""
    from hone.config import require_choice

    names = [served.name for served in endpoint.served]
    if model is None and len(names) == 1:
        return endpoint.served[0]
    if model is None:
        serves = f"serves {', '.join(names)}" if names else "lists no models"
        raise UsageError(f"{endpoint.url} {serves}: name one with --model (model= in Python)")
    if not names:
        return None
    if model not in names and endpoint.kind != "openai" and Path(model).is_dir():
        return _same(endpoint, Path(model))
    return endpoint.served[names.index(require_choice(model, names, f"model at {endpoint.url} called"))]


def _same(endpoint: Endpoint, folder: Path) -> Served:
    """Return the served model that was loaded from `folder`, or from a folder on another machine."""
    roots = [Path(served.root) for served in endpoint.served]
    for root, served in zip(roots, endpoint.served, strict=True):
        if root.is_dir() and root.resolve() == folder.resolve():
            return served
    remote = [served for root, served in zip(roots, endpoint.served, strict=True) if not root.is_dir()]
    if not remote:
        raise UsageError(
            f"{endpoint.url} serves the model in {roots[0]}, not the one in {folder}: restart it with that"
        )
    return remote[0]


def _folder(endpoint: Endpoint, served: Served | None, model: str | None, *, no_recipe: bool) -> str | None:
    """Return the tokenizer's folder for a token-exact engine; None if the recipe sets it."""
    if model is not None and Path(model).is_dir():
        return model
    if model is None and not no_recipe:
        return None
    if served is not None and served.root and Path(served.root).is_dir():
        return served.root
    name = served.name if served else model
    raise UsageError(
        f"{endpoint.url} needs the tokenizer of {name} on this machine: pass its folder with "
        "--model (model= in Python), or evaluate without token ids with --engine-kind openai"
    )


def _lengths(context: int) -> list[str]:
    return [
        f"engine.context_tokens={context}",
        f"sampling.max_tokens={min(REPLY_TOKENS, max(1, context // 4))}",
    ]
