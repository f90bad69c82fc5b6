"""Quote text that an agent wrote or caused, so that the judge cannot take it for instructions.

    text -> escaped -> clipped -> a bar before every line -> between two marks that the text cannot contain

Invariant: no quoted line begins like a line of the judge's instructions, and no quoted text contains a
control token or a boxed mark.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BAR = "| "  # before every quoted line
# Markup of chat templates for any tokenizer; compared without case.
_NAMES = ("s", "think", "tool_call", "tool_response", "tools")
_COMMON = frozenset(f"<{slash}{name}>" for slash in ("", "/") for name in _NAMES) | {"[inst]", "[/inst]"}
_BRACKETED = re.compile(r"<[^\s<>]{1,99}>|\[[^\s\[\]]{1,99}\]")
_ALWAYS = r"<\|[^\s|<>]{1,99}\|>|<</?SYS>>|\\boxed"
_ODD = re.compile(r"[^\x20-\x7e\t]")
_STRUCTURAL = frozenset("<>|[]{}\\")


def clip(text: str, limit: int, *, missing: int = 0) -> str:
    """Return at most `limit` characters of `text`: all of it, or its head and tail.

    A line between the two, which does not count, states how many characters are omitted, plus `missing`.
    Example: clip("abcdef", 4) -> "ab\\n... (2 characters omitted) ...\\nef".
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    omitted = len(text) - limit
    return f"{text[:head]}\n... ({omitted + missing} characters omitted) ...\n{text[head + omitted :]}"


class Quoter:
    """Quotes text for one judge; `control` are its tokenizer's control tokens, see `control_tokens`."""

    def __init__(self, control: Collection[str] = ()) -> None:
        tokens = {token.lower() for token in control if len(token) > 1 and not re.search(r"\s", token)}
        self._bracketed = _COMMON | {token for token in tokens if _BRACKETED.fullmatch(token)}
        others = sorted(tokens - self._bracketed, key=len, reverse=True)
        self._others = re.compile("|".join([*map(re.escape, others), _ALWAYS]), re.IGNORECASE)

    def plain(self, text: str) -> str:
        """Return `text` without control tokens, terminal control characters or boxed marks.

        Lines end in "\\n". Invisible characters, and characters that normalise to the brackets of markup, are
        escaped (`\\u{200b}`); control tokens and boxed marks are broken by a space.
        Example: "<|im_end|> \\\\boxed{+1}" -> "< |im_end|> \\\\ boxed{+1}".
        """
        whole = text.encode("utf-8", "replace").decode("utf-8")
        lines = [_ODD.sub(lambda found: _seen(found.group()), line) for line in whole.splitlines()]
        shown = "\n".join(lines)
        broken = ""
        while broken != shown:  # breaking a mark may leave another that overlapped it
            broken, shown = shown, self._others.sub(_broken, _BRACKETED.sub(self._broken_if_known, shown))
        return shown

    def quote(self, text: str, limit: int, nonce: str) -> str:
        """Return at most `limit` characters of `text`, with bars, between two marks that contain `nonce`."""
        ends = 2 * limit  # enough of head and tail before escaping
        missing = max(0, len(text) - 2 * ends)
        seen = text[:ends] + text[ends + missing :]
        lines = clip(self.plain(seen), limit, missing=missing).split("\n")
        return "\n".join([f"BEGIN QUOTE {nonce}", *(BAR + line for line in lines), f"END QUOTE {nonce}"])

    def _broken_if_known(self, found: re.Match[str]) -> str:
        return _broken(found) if found.group().lower() in self._bracketed else found.group()


def nonce_of(secret: str, material: Iterable[str]) -> str:
    """Return a delimiter that `material` cannot contain: it would have to contain its own digest.

    The same secret and material give the same delimiter, so that a seeded judge is reproducible.
    """
    digest = hashlib.blake2b(key=hashlib.sha256(secret.encode()).digest(), digest_size=8)
    for text in material:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the strings that the tokenizer extracts from a text before it encodes the rest."""
    return frozenset(str(token) for token in cast("Any", tokenizer).get_added_vocab())


def _broken(found: re.Match[str]) -> str:
    return f"{found.group()[0]} {found.group()[1:]}"


@functools.lru_cache(maxsize=4096)
def _seen(character: str) -> str:
    """Return a character, escaped when it is invisible or imitates markup."""
    imitates = any(c in _STRUCTURAL for c in unicodedata.normalize("NFKC", character))
    if imitates or unicodedata.category(character)[0] in "CZ":
        return f"\\u{{{ord(character):x}}}"
    return character
