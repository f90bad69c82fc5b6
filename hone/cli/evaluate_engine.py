"""`--engine`, `--engine-kind` and `--model` of `hone eval`, as settings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import UsageError
from hone.cli.options import require_choice
from hone.policy.errors import PolicyError
from hone.policy.folder import DEFAULT_CONTEXT, longest_context

if TYPE_CHECKING:
    from hone.launch.endpoint import Endpoint, Served

LOCAL = "local"
KINDS = ("vllm", "sglang", "openai")
REPLY_TOKENS = 4096  # without a recipe, at most, and at most a quarter of the context

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="URL|local",
        help="What samples replies, in place of the recipe's: a server, or the model in this process.",
        show_default=False,
    ),
]
EngineKindOption = Annotated[
    str | None,
    typer.Option(
        "--engine-kind",
        metavar="KIND",
        help=f"What the server is ({', '.join(KINDS)}); default: found out. openai: text, without tokens.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FOLDER|NAME",
        help="The policy's model: its folder, or what the server calls it.",
        show_default=False,
    ),
]

Given = dict[str, tuple[str, str]]  # setting -> (the flag, the value in TOML)


def engine_settings(
    engine: str | None, kind: str | None, model: str | None, *, key_env: str | None, alone: bool
) -> tuple[Given, list[str]]:
    """The settings that the three flags stand for, and defaults below them; asks a server what it is.

    Args:
        key_env: environment variable with the server's key.
        alone: no recipe says how long contexts and replies are.

    Raises UsageError, and EngineError when the server does not answer.
    """
    if kind is not None:
        require_choice(kind, KINDS, "kind of engine")
        if engine is None or engine == LOCAL:
            raise UsageError("--engine-kind says what a server is: give its address with --engine")
    if engine is None or engine == LOCAL:
        given: Given = {} if engine is None else {"engine.kind": ("--engine", json.dumps(LOCAL))}
        if model is not None:
            given["model.path"] = ("--model", json.dumps(model))
        if not alone or model is None:
            return given, []
        try:
            longest = longest_context(Path(model))
        except PolicyError as error:
            raise UsageError(f"--model: {error}") from None
        return given, _lengths(min(longest or DEFAULT_CONTEXT, DEFAULT_CONTEXT))
    if not engine.startswith(("http://", "https://")):
        raise UsageError(f"--engine {engine} is no address such as http://host:8000, nor `local`")
    from hone.launch.endpoint import find_endpoint

    endpoint = find_endpoint(engine, kind, key=os.environ.get(key_env) if key_env else None)
    served = _chosen(endpoint, model)
    given = {
        "engine.kind": ("--engine", json.dumps(endpoint.kind)),
        "engine.urls": ("--engine", json.dumps([endpoint.url])),
    }
    if endpoint.kind == "openai":
        given["engine.model_name"] = ("--model", json.dumps(served.name if served else model))
    elif folder := _folder(endpoint, served, model, alone=alone):
        given["model.path"] = ("--model", json.dumps(folder))
    told = served.context_tokens if served else None
    return given, _lengths(told or DEFAULT_CONTEXT) if alone else []


def _chosen(endpoint: Endpoint, model: str | None) -> Served | None:
    """The served model that is meant; None where the server does not tell. Raises UsageError."""
    names = [served.name for served in endpoint.served]
    if model is None and len(names) == 1:
        return endpoint.served[0]
    if model is None:
        serves = f"it serves {', '.join(names)}" if names else "it does not tell what it serves"
        raise UsageError(f"say with --model which model of {endpoint.url} is meant: {serves}")
    if not names:
        return None
    if model not in names and endpoint.kind != "openai" and Path(model).is_dir():
        return _same(endpoint, Path(model))
    return endpoint.served[names.index(require_choice(model, names, f"model at {endpoint.url} called"))]


def _same(endpoint: Endpoint, folder: Path) -> Served:
    """The served model that may be that of `folder`: it was loaded from there, or from somewhere unseen."""
    roots = [Path(served.root) for served in endpoint.served]
    for root, served in zip(roots, endpoint.served, strict=True):
        if root.is_dir() and root.resolve() == folder.resolve():
            return served
    unseen = [served for root, served in zip(roots, endpoint.served, strict=True) if not root.is_dir()]
    if not unseen:
        raise UsageError(
            f"{endpoint.url} serves the model in {roots[0]}, not that in {folder}: serve the other one"
        )
    return unseen[0]


def _folder(endpoint: Endpoint, served: Served | None, model: str | None, *, alone: bool) -> str | None:
    """Where the tokenizer of a token-exact engine lies; None: the recipe says it. Raises UsageError."""
    if model is not None and Path(model).is_dir():
        return model
    if model is None and not alone:
        return None
    if served is not None and served.root and Path(served.root).is_dir():
        return served.root
    name = served.name if served else model
    raise UsageError(
        f"the tokenizer of {name} is needed here to talk to {endpoint.url} in tokens: give its folder with "
        "--model, or go without tokens by --engine-kind openai"
    )


def _lengths(context: int) -> list[str]:
    return [
        f"engine.context_tokens={context}",
        f"sampling.max_tokens={min(REPLY_TOKENS, max(1, context // 4))}",
    ]
