"""Create a tiny Qwen3 model and a tokenizer trained on sample texts.

Each word of an identifier, operator, number, newline with its indent and line number of `cat -n` is one
token; rarer text falls back to bytes, so encode and decode preserve every text.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hone.policy.settings import TinyModelSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The renderer of the Qwen3 family requires these.
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
MARKUP_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

_KEYWORDS = (
    "and as assert break class continue def del elif else except finally for from if import in is lambda "
    "not or pass raise return try while with yield None True False"
)
# In this order: the first alternative that matches at a position wins.
PIECES = "|".join(
    (
        r"^(?:system|user|assistant)\n",  # the header of a message
        r" {0,5}\d+\t",  # a line number of `cat -n`
        r"\n(?= {0,5}\d+\t)",
        r"\n *",  # a newline and the indent after it
        rf" ?\b(?:{_KEYWORDS.replace(' ', '|')})\b ?",
        r"_?[A-Za-z]+",  # no space before it: a name is one token wherever it stands, so it can be copied
        r" ?\d{1,3}",
        r"`{3}(?:[a-z]+\n)?",  # a code fence
        r" ?[=<>!+\-*/%&|^~]+ ?",  # operators
        r", ",
        r": ",
        r" +",
        r"\s",
        r"[^\sA-Za-z0-9]",
    )
)

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tiny(texts: Iterable[str], out: Path, settings: TinyModelSettings | None = None) -> Path:
    """Write a randomly initialised Qwen3 model folder to `out` and return it.

    `texts` are samples of the model's input and output (issues, listings, commands); their most frequent
    pieces become tokens. Plain transformers loads the folder (AutoModelForCausalLM, AutoTokenizer).
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    settings = settings or TinyModelSettings()
    tokenizer = make_tokenizer(texts, settings)
    end, pad = cast("int", tokenizer.eos_token_id), cast("int", tokenizer.pad_token_id)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.head_dim,
        max_position_embeddings=settings.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=True,
        initializer_range=settings.initializer_range,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        use_sliding_window=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=[end, pad], pad_token_id=pad
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def make_tokenizer(texts: Iterable[str], settings: TinyModelSettings) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the tiny model, with a plain ChatML template (Qwen3's without reasoning)."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts, settings.vocab_size),
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=settings.max_positions,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a tokenizer with the special tokens, the 256 bytes and the most frequent pieces of `texts`.

    A piece in the vocabulary is one token; any other is encoded as bytes.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    markup = (*SPECIAL_TOKENS, *MARKUP_TOKENS)
    counts = Counter(
        {f"{role}\n".replace("\n", "Ċ"): 1 << 30 for role in ("system", "user", "assistant")}
    )  # every conversation has these
    for text in texts:
        counts.update(piece for piece, _ in pieces.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ranked = sorted((p for p, n in counts.items() if n > 1 and len(p) > 1), key=lambda p: (-counts[p], p))
    vocabulary = [*markup, *alphabet, *ranked[: vocab_size - len(markup) - len(alphabet)]]
    # ignore_merges: a piece in the vocabulary becomes one token, so no merges are needed
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(vocabulary)}, merges=[], ignore_merges=True)
    )
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    return tokenizer
