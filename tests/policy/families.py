"""Chat templates of real models and every model family of `renderers`, on one small real tokenizer."""

# ruff: noqa: RUF001
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import config_from_name
from tiktoken_ext.openai_public import o200k_harmony
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from hone.policy.errors import PolicyError
from hone.policy.model import make_renderer
from hone.policy.rendering import ChatRenderer

[_TRL] = find_spec("trl").submodule_search_locations  # to import it takes seconds
FOLDER = Path(_TRL) / "chat_templates"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))
FAMILIES = sorted(set(MODEL_RENDERER_MAP.values()))
QUIET = [name for name in FAMILIES if "enable_thinking" in type(config_from_name(name)).model_fields]
_O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"  # tiktoken's name for a copy of that vocabulary
_MARKUP = re.compile(r"<[|｜/]?[A-Za-z_:▁~]+[|｜]?>|\[/?[A-Z_]{3,}\]|<\|\"\|>")
_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|eot|>",
)
_QWEN = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_QWEN_MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_WORDS = ("the", "user", "assistant", "system", "tool", "file", "error", "def", "return", "import", "self")


def vocabulary() -> tuple[list[str], list[str]]:
    """The 256 bytes and some words; and merges that spell each word out of them, letter by letter."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = list(alphabet), []
    for word in _WORDS:
        for start in ("", "Ġ"):
            spelled = f"{start}{word}"
            for end in range(2, len(spelled) + 1):
                if spelled[:end] not in pieces:
                    pieces.append(spelled[:end])
                    merges.append((spelled[: end - 1], spelled[end - 1]))
    return pieces, merges


def make_tokenizer(
    special: list[str], markup: list[str], eos: str, bos: str, source: str | None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that holds these tokens.

    As in Llama 3's and Mistral's, most special tokens have no role: nothing but their own mark says it.
    """
    pieces, merges = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        bos_token=bos,
        pad_token=eos,
        chat_template=source,
        clean_up_tokenization_spaces=False,
    )


def special_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


@cache
def template_tokenizer(name: str) -> PreTrainedTokenizerFast:
    source = (FOLDER / f"{name}.jinja").read_text()
    found = list(dict.fromkeys(_MARKUP.findall(source)))
    markup = [t for t in found if re.fullmatch(r"</?(think|tool_call|tool_response)>", t)]
    plain = re.compile(
        r"</?(name|description|IMPORTANT|type|required|enum|param\w*|function|tools?|SYS|arg_\w+)>"
    )
    special = [t for t in found if t not in markup and not plain.fullmatch(t)]
    if "qwen" in name or "nemotron" in name:
        special = list(dict.fromkeys([*_QWEN, *special]))
        markup = list(dict.fromkeys([*markup, *_QWEN_MARKUP]))
    eos = next((t for t in _ENDS if t in special), "</s>")
    if "deepseek" in name:
        eos = "<｜end▁of▁sentence｜>"
    ends = [token for token in (eos, "<bos>") if token not in special]  # in one order: it decides their ids
    return make_tokenizer([*special, *ends], markup, eos, "<bos>", source)


@cache
def family(name: str, *, thinking: bool = True) -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    """A family's renderer, on a tokenizer that holds the tokens it asks for."""
    if name == "gpt-oss":
        return _gpt_oss()
    special = ["<|eos|>"]
    while True:
        tokenizer = make_tokenizer(special, [], "<|eos|>", "<|eos|>", None)
        try:
            return tokenizer, make_renderer(tokenizer, name, thinking=thinking)
        except PolicyError as error:
            missing = re.findall(r"['\"]([^'\"]+)['\"]", str(error).split("''", 1)[1])
            if not missing or missing[0] in special:
                raise
            special.append(missing[0])


@contextmanager
def gpt_oss_vocabulary() -> Iterator[None]:
    """Let openai-harmony find the vocabulary of gpt-oss, of which litellm contains a copy."""
    [litellm] = find_spec("litellm").submodule_search_locations
    copies = Path(litellm) / "litellm_core_utils" / "tokenizers"
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(copies))
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", folder)
        (Path(folder) / "o200k_base.tiktoken").symlink_to(copies / _O200K)
        yield


def _gpt_oss() -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    """Return the gpt-oss renderer; its own encoder needs the real vocabulary."""
    with gpt_oss_vocabulary():
        encoding = o200k_harmony()
        converter = TikTokenConverter("", encoding["pat_str"])
        converter.load_tiktoken_bpe = lambda _: encoding["mergeable_ranks"]
        bpe = converter.converted()
        names = {number: name for name, number in encoding["special_tokens"].items()}
        bpe.add_special_tokens([AddedToken(names[i], special=True, normalized=False) for i in sorted(names)])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            eos_token="<|return|>",
            bos_token="<|startoftext|>",
            pad_token="<|endoftext|>",
        )
        assert all(tokenizer.convert_tokens_to_ids(name) == i for i, name in names.items())
        return tokenizer, make_renderer(tokenizer, "gpt-oss")


@cache
def template(name: str) -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    """Return a renderer for a real model's chat template."""
    tokenizer = template_tokenizer(name)
    return tokenizer, make_renderer(tokenizer, "default")


def chatml(source: str) -> tuple[PreTrainedTokenizerFast, ChatRenderer]:
    """Return a renderer for a custom chat template with ChatML tokens."""
    tokenizer = make_tokenizer(list(_QWEN), list(_QWEN_MARKUP), "<|im_end|>", "<|endoftext|>", source)
    return tokenizer, make_renderer(tokenizer, "default")
