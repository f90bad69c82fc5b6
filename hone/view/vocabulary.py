"""The text and the bytes of single tokens, out of a tokenizer's own file."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hone.view.reader import RunReader

FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Token id -> bytes, of byte-level and of SentencePiece tokenizers."""

    def __init__(self, file: Path) -> None:
        """Raises OSError or ValueError for a file that is no tokenizer."""
        data: dict[str, Any] = json.loads(file.read_bytes())
        self.folder = file.parent
        byte_level = '"ByteLevel"' in json.dumps([data.get("pre_tokenizer"), data.get("decoder")])
        pieces: dict[str, int] = _pieces(data["model"]["vocab"])
        decode = _byte_level if byte_level else _sentence_piece
        self._bytes = {number: decode(piece) for piece, number in pieces.items()}
        for added in data.get("added_tokens", ()):
            self._bytes[added["id"]] = added["content"].encode()

        self._shown: dict[int, tuple[str, str]] = {}

    def show(self, tokens: Iterable[int]) -> list[tuple[str, str]]:
        """Return text and bytes (hexadecimal) of each token; those of "<id>" for an unknown one."""
        return [self._shown.get(token) or self._show(token) for token in tokens]

    def _show(self, token: int) -> tuple[str, str]:
        raw = self._bytes.get(token, f"<{token}>".encode())
        shown = self._shown[token] = (raw.decode("utf-8", "replace"), raw.hex())
        return shown


def find_vocabulary(reader: RunReader) -> Vocabulary | None:
    """Return the vocabulary of the run's model; None where its tokenizer is not at hand."""
    folders = sorted((reader.directory / "checkpoints").glob("step-*"), reverse=True)
    folders.append(reader.directory / "start")
    settings = reader.settings()
    if settings is not None and settings.model is not None:
        folders.append(settings.model.path)
    folders += _evaluated(reader)
    for folder in folders:
        file = folder / FILE
        if file.is_file():
            try:
                return _vocabulary(file, file.stat().st_mtime_ns)
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return None


def _evaluated(reader: RunReader) -> list[Path]:
    """Return where the model may lie that an evaluation names: its path may start at a folder above."""
    try:
        model = json.loads((reader.directory / "summary.json").read_bytes()).get("model")
    except (OSError, ValueError):
        return []
    if not isinstance(model, str) or not model:
        return []
    return [Path(model), *(folder / model for folder in reader.directory.resolve().parents)]


@functools.lru_cache(maxsize=8)
def _vocabulary(file: Path, modified: int) -> Vocabulary:
    return Vocabulary(file)


def _pieces(vocabulary: Any) -> dict[str, int]:
    """Return piece -> id; a Unigram model lists [piece, score] in order."""
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece: number for number, (piece, _) in enumerate(vocabulary)}


def _byte_level(piece: str) -> bytes:
    table = _byte_table()
    return b"".join(bytes([table[c]]) if c in table else c.encode() for c in piece)


def _sentence_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()


@functools.cache
def _byte_table() -> dict[str, int]:
    """Return the character that stands for each byte in byte-level vocabularies -> that byte.

    Bytes that print stand for themselves, all others for characters from 256 on, in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
