"""The text and the bytes of single tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from hone.view.reader import RunReader
from hone.view.vocabulary import Vocabulary, find_vocabulary

TEXT = "naïve 'code' = \"日本\"\n\tif x:\r\n"


def byte_level(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def test_bytes_of_a_byte_level_tokenizer_make_the_text(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path / "start")
    vocabulary = find_vocabulary(RunReader("run", tmp_path))
    assert vocabulary is not None

    shown = vocabulary.show(tokenizer.encode(TEXT).ids)
    assert bytes.fromhex("".join(raw for _, raw in shown)).decode() == TEXT
    assert vocabulary.show([0, 999]) == [("<|im_end|>", b"<|im_end|>".hex()), ("<999>", b"<999>".hex())]


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {"\u2581if": 0, "<0xE6>": 1, "x": 2}},
        {"type": "Unigram", "vocab": [["\u2581if", -1.0], ["<0xE6>", -2.0], ["x", -3.0]]},
    ],
)
def test_pieces_of_sentencepiece_are_spaces_and_bytes(tmp_path: Path, model: dict[str, Any]) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"model": model, "added_tokens": [{"id": 3, "content": "</s>"}]}))
    shown = Vocabulary(file).show([0, 1, 2, 3])
    assert shown == [(" if", "206966"), ("\ufffd", "e6"), ("x", "78"), ("</s>", "3c2f733e")]


def test_damaged_tokenizer_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "tokenizer.json").write_text("{")
    assert find_vocabulary(RunReader("run", tmp_path)) is None
