"""Load a model folder: the weights, the tokenizer and the renderer for its chat template.

An unusable folder raises PolicyError here, before any other work starts.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hone.policy.errors import PolicyError
from hone.policy.rendering import ChatRenderer, family_names, family_renderer, first_line
from hone.policy.reply import ToolSpec
from hone.policy.settings import Dtype
from hone.policy.template import TemplateRenderer
from hone.types import Message
from hone.utils.text import as_url

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_CONTEXT = 32768  # maximum tokens if neither settings nor model define a context length
# A candidate renderer must give the same tokens for this as the model's own chat template.
_PROBE: list[Message] = [
    {"role": "system", "content": "Fix the bug."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "Thanks."},
]
_TOOL: ToolSpec = {
    "name": "bash",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}
_TOOL_PROBE: list[Message] = [
    *_PROBE[:2],
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "shop.py", "tool_call_id": "call_1"},
]


def read_config(folder: Path) -> dict[str, Any]:
    """Return the language model's part of config.json: `text_config` for a multimodal model.

    Raises PolicyError if the folder or its config.json is missing or invalid.
    """
    if folder.is_file():
        raise PolicyError(
            f"{folder} is a single file, but a model is a folder with config.json and *.safetensors: pass "
            "the Hugging Face model that the file was made from"
        )
    if url := as_url(folder):
        raise PolicyError(
            f"{url} is a URL: pass the name of the model on the hub, such as Qwen/Qwen3-0.6B, or its folder"
        )
    if not folder.is_dir():
        raise PolicyError(f"there is no model folder {folder}: pass the folder of a Hugging Face model")
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(_not_a_model(folder))
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise PolicyError(f"{path} is not JSON ({error}): copy it again") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{path} is not a JSON object: copy it again")
    config = cast("dict[str, Any]", config)
    return config.get("text_config") or config


def _not_a_model(folder: Path) -> str:
    """Return why a folder without config.json is no model, and what to do."""
    if (folder / "adapter_config.json").is_file():
        return (
            f"{folder} holds only an adapter: pass its base model, or a model into which the adapter was "
            "merged (peft's merge_and_unload)"
        )
    if any(folder.glob("*.gguf")):
        return f"{folder} holds GGUF files: pass the Hugging Face model that they were made from"
    return f"{folder} has no config.json: pass the folder of a Hugging Face model"


def longest_context(folder: Path) -> int | None:
    """Return the model's `max_position_embeddings`; None if its config has none. Raises PolicyError."""
    found = read_config(folder).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def load_model(path: Path, dtype: Dtype = "float32") -> PreTrainedModel:
    """Return the causal language model in folder `path`, in evaluation mode, on the CPU.

    Raises PolicyError if the folder, its configuration or its weights are missing or corrupt.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    config = read_config(path)  # raises PolicyError for anything but a model folder
    if method := config.get("quantization_config"):
        raise PolicyError(
            f"the weights in {path} are quantised ({method.get('quant_method')}), which cannot be trained: "
            "pass the model that they were made from"
        )
    if not any(path.glob("*.safetensors")):
        raise PolicyError(f"{path} has no *.safetensors weights: download or convert the model's weights")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
    except SafetensorError as error:
        raise PolicyError(f"the weights in {path} are corrupt ({error}): copy the file again") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise PolicyError(f"the model in {path} cannot be loaded: {first_line(error)}") from error
    return model.eval()


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in folder `path`. Raises PolicyError if it is missing or unreadable."""
    from transformers import AutoTokenizer

    read_config(path)  # raises PolicyError for anything but a model folder
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise PolicyError(f"{path} has no tokenizer: copy tokenizer.json and tokenizer_config.json into it")
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception for a file it cannot parse
        raise PolicyError(f"the tokenizer in {path} cannot be loaded: {first_line(error)}") from error


def make_renderer(
    tokenizer: PreTrainedTokenizerBase, name: str = "auto", *, thinking: bool = True
) -> ChatRenderer:
    """Return the renderer `name` for this tokenizer (see `ModelSettings.renderer` and `.thinking`).

    Raises PolicyError if the name or the chat template is unknown or unusable.
    """
    if name == "auto":
        name = _matching_family(tokenizer)
    if name == "default":
        _require_template(tokenizer)
        if not thinking:
            raise PolicyError(
                "model.thinking = false needs a family renderer with a reasoning switch: set "
                "model.renderer to the renderer of the model's family"
            )
        return TemplateRenderer(tokenizer)
    renderer = family_renderer(tokenizer, name, thinking=thinking)
    if isinstance(renderer, str):
        raise PolicyError(
            f"the renderer {name!r} does not fit the tokenizer {tokenizer.name_or_path!r}: {renderer}"
        )
    return renderer


def _matching_family(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the family that gives the chat template's tokens, tool calls included if supported."""
    from renderers.base import MODEL_RENDERER_MAP

    known = MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    if known is not None:
        return known
    _require_template(tokenizer)
    template = TemplateRenderer(tokenizer)
    expected = _tokens(template, _PROBE) or _tokens(template, _PROBE[1:])
    tools = _tokens(template, _TOOL_PROBE, [_TOOL]) if template.shows_tools else None
    for name in family_names():
        renderer = family_renderer(tokenizer, name)
        if isinstance(renderer, str) or expected not in (
            _tokens(renderer, _PROBE),
            _tokens(renderer, _PROBE[1:]),
        ):
            continue
        if tools is None or _tokens(renderer, _TOOL_PROBE, [_TOOL]) == tools:
            return name
    raise PolicyError(
        f"no renderer gives the tokens of the chat template of {tokenizer.name_or_path!r}: set "
        "model.renderer to the renderer of the model's family, or to 'default' to use the template as it is"
    )


def _tokens(
    renderer: ChatRenderer, messages: list[Message], tools: list[ToolSpec] | None = None
) -> list[int] | None:
    """Return the tokens of a probe; None if the renderer rejects it."""
    try:
        return renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    except PolicyError:
        return None


def _require_template(tokenizer: PreTrainedTokenizerBase) -> None:
    if not tokenizer.chat_template:
        raise PolicyError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template: add chat_template.jinja to the "
            "model folder, or set model.renderer to the renderer of the model's family"
        )
