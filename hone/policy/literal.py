"""Special tokens that a message merely mentions stay text.

A file may contain `<|im_end|>`. An engine that is given text turns it into the special token, and so what a
command printed could end its own message and begin another. Hone gives engines token ids: the text of a
message is marked where it spells a special token, and the marked text is encoded letter by letter.

Only special tokens (those that structure a conversation) are protected. Other added tokens, such as
`<tool_call>` in most vocabularies, keep their ids wherever they stand, as in every engine: prompts name them
to show a model what to write.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from hone.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Unicode noncharacters, which no text holds; U+FFFD takes the place of those that one does hold.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{_OPEN}{_CLOSE}]")
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}|{_MARKS.pattern}")
_Piece = tuple[list[int], list[tuple[int, int]]]  # ids, and the characters that each stands for
_THINKING = ("<think>", "</think>")  # renderers look for them in a reply's text


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Longest first: those with a role (end, padding), and those that are only declared special.

    Many vocabularies, Llama 3's and Mistral's among them, give most of their markers no role.
    """
    declared = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    every = {token for token in (*tokenizer.all_special_tokens, *declared) if token.strip()}
    return sorted(every, key=lambda token: (-len(token), token))


class LiteralTokenizer:
    """A tokenizer that spells marked text letter by letter, and knows special tokens without a role as such.

    Everything else is the tokenizer's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.all_special_tokens = special_tokens(tokenizer)
        self._special = re.compile("|".join(map(re.escape, self.all_special_tokens)) or "(?!)")
        self._newline = self._ids("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with every special token marked, wherever they hold one."""
        return [self._marked(message) for message in messages]

    def mark_json(self, value: Any) -> Any:
        """A value of JSON with every special token in its texts marked."""
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, dict):
            return {self._mark(name): self.mark_json(v) for name, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.mark_json(inner) for inner in cast("list[Any]", value)]
        return value

    def encode(self, text: str, **options: Any) -> list[int]:
        """The ids of a text that may hold marks; no option other than the tokenizer's own."""
        if not _MARKS.search(text):
            return self._tokenizer.encode(text, **options)
        return [id for ids, _ in self._pieces(text) for id in ids]

    def inside(self, text: str) -> list[int]:
        """The ids of a text that may hold marks and stands behind other tokens."""
        return [id for ids, _ in self._pieces(text, inside=True) for id in ids]

    def __call__(self, text: str, **options: Any) -> Any:
        """As the tokenizer; offsets count the marks, like the text they point into."""
        if not _MARKS.search(text):
            return self._tokenizer(text, **options)
        pieces = list(self._pieces(text))
        return {
            "input_ids": [id for ids, _ in pieces for id in ids],
            "offset_mapping": [span for _, spans in pieces for span in spans],
        }

    def _marked(self, message: Message) -> Message:
        kept = _THINKING if message["role"] == "assistant" else ()
        rest = self.mark_json({key: value for key, value in message.items() if key != "content"})
        return {"content": self._mark(message["content"], *kept), **rest}

    def _mark(self, text: str, *but: str) -> str:
        """The text with every special token marked but these."""
        clean = _MARKS.sub("\ufffd", text)
        return self._special.sub(lambda f: f[0] if f[0] in but else f"{_OPEN}{f[0]}{_CLOSE}", clean)

    def _pieces(self, text: str, *, inside: bool = False) -> Iterator[_Piece]:
        """The ids of each piece of a marked text, and the characters each id stands for."""
        at = 0
        for found in _MARKED.finditer(text):
            yield self._piece(text, at, found.start(), inside)
            for position in range(found.start(1), found.end(1)):
                yield self._piece(text, position, position + 1, inside)
            at = found.end()
        yield self._piece(text, at, len(text), inside)

    def _piece(self, text: str, start: int, end: int, inside: bool) -> _Piece:
        if start == end:
            return [], []
        ids = self._middle(text[start:end]) if start or inside else self._ids(text[:end])
        return ids, [(start, end)] * len(ids)

    def _middle(self, text: str) -> list[int]:
        """Ids of text behind other text: without the space that some tokenizers begin a text with."""
        ids = self._ids("\n" + text)
        if ids[: len(self._newline)] == self._newline:
            return ids[len(self._newline) :]
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
