"""Load a model folder: the weights, the tokenizer, and the renderer that speaks its chat template.

The rule that must not break: a folder that cannot be used is refused here, in one sentence, before any work.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from hone.policy.errors import PolicyError

if TYPE_CHECKING:
    from renderers import Renderer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Rendered by a candidate renderer and by the model's own chat template, which must agree token by token.
_PROBE: list[Any] = [
    {"role": "system", "content": "Fix the bug."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "Thanks."},
]


def load_model(path: Path, dtype: Literal["float32", "bfloat16"] = "float32") -> PreTrainedModel:
    """The causal language model in folder `path`, in evaluation mode, on the CPU.

    Raises PolicyError when the folder, its configuration or its weights are missing or damaged.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    _require_config(path)
    if not any(path.glob("*.safetensors")):
        raise PolicyError(f"{path} holds no *.safetensors weights: download or convert the model's weights")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
    except SafetensorError as error:
        raise PolicyError(
            f"the weights in {path} are damaged ({error}): the file was cut short or changed; copy it again"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise PolicyError(f"the model in {path} cannot be loaded: {_first_line(error)}") from error
    return model.eval()


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in folder `path`. Raises PolicyError when there is none or it cannot be read."""
    from transformers import AutoTokenizer

    _require_config(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise PolicyError(f"{path} holds no tokenizer: copy tokenizer.json and tokenizer_config.json into it")
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception for a file it cannot parse
        raise PolicyError(f"the tokenizer in {path} cannot be loaded: {_first_line(error)}") from error


def make_renderer(tokenizer: PreTrainedTokenizerBase, name: str = "auto") -> Renderer:
    """The renderer `name` for this tokenizer (see `ModelSettings.renderer`).

    Conversations only ever grow: past reasoning stays in the prompt, so that what was sampled is never
    rendered again. Raises PolicyError when the name or the chat template is not known.
    """
    import renderers

    if name == "auto":
        name = _matching_renderer(tokenizer)
    if name == "default":
        _require_template(tokenizer)
        _render_template(tokenizer)
        return renderers.create_renderer(tokenizer, renderers.DefaultRendererConfig())
    renderer = _typed_renderer(tokenizer, name)
    if isinstance(renderer, str):
        raise PolicyError(
            f"the renderer {name!r} does not fit the tokenizer {tokenizer.name_or_path!r}: {renderer}"
        )
    return renderer


def _matching_renderer(tokenizer: PreTrainedTokenizerBase) -> str:
    from renderers.base import MODEL_RENDERER_MAP

    known = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    if known is not None:
        return known
    _require_template(tokenizer)
    expected = _render_template(tokenizer)
    for name in dict.fromkeys(MODEL_RENDERER_MAP.values()):
        renderer = _typed_renderer(tokenizer, name)
        if not isinstance(renderer, str) and _probe(renderer) == expected:
            return name
    raise PolicyError(
        f"no renderer gives the tokens of the chat template of {tokenizer.name_or_path!r}: set "
        "model.renderer to the renderer of the model's family, or to 'default' to use the template as it is"
    )


def _typed_renderer(tokenizer: PreTrainedTokenizerBase, name: str) -> Renderer | str:
    """The renderer, or why it cannot serve this tokenizer."""
    import renderers
    from renderers.configs import config_from_name

    names = sorted(set(renderers.base.MODEL_RENDERER_MAP.values()))
    if name not in names:
        return f"there is no such renderer; there are: auto, default, {', '.join(names)}"
    settings: Any = type(config_from_name(name))
    try:
        return renderers.create_renderer(tokenizer, settings(thinking_retention="all"))
    except Exception as error:  # renderers refuse a tokenizer in many ways, assertions included
        return _first_line(error)


def _probe(renderer: Renderer) -> list[int] | None:
    try:
        return renderer.render_ids(_PROBE, add_generation_prompt=True)
    except Exception:  # a renderer of another family may trip over a token that this tokenizer lacks
        return None


def _render_template(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    try:
        ids = tokenizer.apply_chat_template(
            _PROBE, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # jinja errors, and whatever the template itself raises
        raise PolicyError(
            f"the chat template of {tokenizer.name_or_path!r} fails on a plain conversation: "
            f"{_first_line(error)}"
        ) from error
    return cast("list[int]", list(ids))


def _require_template(tokenizer: PreTrainedTokenizerBase) -> None:
    if not tokenizer.chat_template:
        raise PolicyError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template: add chat_template.jinja to the "
            "model folder, or set model.renderer to the renderer of the model's family"
        )


def _require_config(path: Path) -> None:
    if not path.is_dir():
        raise PolicyError(f"there is no model folder {path}: give the folder of a Hugging Face model")
    config = path / "config.json"
    if not config.is_file():
        raise PolicyError(f"{path} holds no config.json: give the folder of a Hugging Face model")
    try:
        json.loads(config.read_text())
    except ValueError as error:
        raise PolicyError(f"{config} is not JSON ({error}): copy it again") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
