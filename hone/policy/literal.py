"""Keep special tokens inside messages as plain text.

A file may contain `<|im_end|>`. An engine that tokenizes text turns it into the special token, so the output
of a command could end its own message and start another. Hone sends token ids to engines: it marks special
tokens inside messages and encodes the marked text character by character.

Only special tokens (those that structure a conversation) are protected. Other added tokens, such as
`<tool_call>` in most vocabularies, always keep their ids, as in every engine: prompts mention them to show a
model the expected format.
"""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from hone.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Unicode noncharacters mark the text; any that a message contains become U+FFFD.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{_OPEN}{_CLOSE}]")
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}|{_MARKS.pattern}")
_SHORT, _CACHED = 32, 4096  # characters of the texts whose ids are kept, and their number; markers repeat
_THINKING = ("<think>", "</think>")  # renderers look for these in the text of a reply


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the special tokens, longest first: those with a role (end, padding) or declared special.

    Many vocabularies (Llama 3, Mistral) assign no role to most of their special tokens.
    """
    declared = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    every = {token for token in (*tokenizer.all_special_tokens, *declared) if token.strip()}
    return sorted(every, key=lambda token: (-len(token), token))


class LiteralTokenizer:
    """A tokenizer that encodes marked text by character and also lists special tokens without a role.

    All other attributes come from the wrapped tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:  # as transformers sets it in each call
            self._backend.no_truncation()
            self._backend.no_padding()
        self.all_special_tokens = special_tokens(tokenizer)
        self._special = re.compile("|".join(map(re.escape, self.all_special_tokens)) or "(?!)")
        self._short_ids = functools.lru_cache(_CACHED)(self._encoded)
        self._newline = self._ids("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with every special token marked."""
        return [self._marked(message) for message in messages]

    def mark_json(self, value: Any) -> Any:
        """Return the JSON value with every special token in its strings marked."""
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, dict):
            return {self._mark(name): self.mark_json(v) for name, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.mark_json(inner) for inner in cast("list[Any]", value)]
        return value

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text that may contain marks."""
        if not _MARKS.search(text):
            return self._encode(text, add_special_tokens=add_special_tokens)
        return [id for ids in self._pieces(text) for id in ids]

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of a text that may contain marks and continues other text."""
        return [id for ids in self._pieces(text, continued=True) for id in ids]

    def __call__(self, text: str, **options: Any) -> Any:
        """Raise NotImplementedError: renderers then encode without offsets, for which nothing here has a use.

        A million offsets are a second's work that lets no other thread run.
        """
        raise NotImplementedError("offsets are not supported: use encode")

    def _marked(self, message: Message) -> Message:
        kept = _THINKING if message["role"] == "assistant" else ()
        rest = self.mark_json({key: value for key, value in message.items() if key != "content"})
        return {"content": self._mark(message["content"], *kept), **rest}

    def _mark(self, text: str, *but: str) -> str:
        """Return the text with every special token marked except `but`."""
        clean = _MARKS.sub("\ufffd", text)
        return self._special.sub(lambda f: f[0] if f[0] in but else f"{_OPEN}{f[0]}{_CLOSE}", clean)

    def _pieces(self, text: str, *, continued: bool = False) -> Iterator[Sequence[int]]:
        """Yield the ids of each piece of a marked text."""
        at = 0
        for found in _MARKED.finditer(text):
            yield self._piece(text, at, found.start(), continued)
            for position in range(found.start(1), found.end(1)):
                yield self._piece(text, position, position + 1, continued)
            at = found.end()
        yield self._piece(text, at, len(text), continued)

    def _piece(self, text: str, start: int, end: int, continued: bool) -> Sequence[int]:
        if start == end:
            return []
        return self._middle(text[start:end]) if start or continued else self._ids(text[:end])

    def _middle(self, text: str) -> Sequence[int]:
        """Return the ids of text in the middle: without the space that some tokenizers put first."""
        ids = self._ids("\n" + text)
        if ids[: len(self._newline)] == self._newline:
            return ids[len(self._newline) :]
        return self._ids(text)

    def _ids(self, text: str) -> Sequence[int]:
        return self._short_ids(text) if len(text) <= _SHORT else self._encoded(text)

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._encode(text, add_special_tokens=False))

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokenizer's own ids; a fast one makes nothing but them, while other threads run."""
        if self._backend is None:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids
