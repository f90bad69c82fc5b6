"""Quoting: how text that an agent wrote or caused is shown to a judge without speaking to it.

    text -> escaped -> clipped -> every line behind a bar -> between two marks that the text cannot hold

The rule that must not break: whatever the text is, no line of it begins like a line of the judge's own
instructions, nothing in it is read as a control token, and it holds no boxed mark that could be echoed.
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
# What chat templates are made of, whatever the tokenizer; compared without regard to case.
_NAMES = ("s", "think", "tool_call", "tool_response", "tools")
_COMMON = frozenset(f"<{slash}{name}>" for slash in ("", "/") for name in _NAMES) | {"[inst]", "[/inst]"}
_BRACKETED = re.compile(r"<[^\s<>]{1,99}>|\[[^\s\[\]]{1,99}\]")
_ALWAYS = r"<\|[^\s|<>]{1,99}\|>|<</?SYS>>|\\boxed"
_ODD = re.compile(r"[^\x20-\x7e\t]")
_STRUCTURAL = frozenset("<>|[]{}\\")


def clip(text: str, limit: int, *, missing: int = 0) -> str:
    """At most `limit` characters of `text`: all of it, or its head and tail, which never overlap.

    Between the two stands how much is left out, and `missing` characters more; that line does not count.
    Example: clip("abcdef", 4) -> "ab\\n... (2 characters omitted) ...\\nef".
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    left_out = len(text) - limit
    return f"{text[:head]}\n... ({left_out + missing} characters omitted) ...\n{text[head + left_out :]}"


class Quoter:
    """Quotes for one judge; `control` is what its tokenizer reads in any text, see `control_tokens`."""

    def __init__(self, control: Collection[str] = ()) -> None:
        tokens = {token.lower() for token in control if len(token) > 1 and not re.search(r"\s", token)}
        self._bracketed = _COMMON | {token for token in tokens if _BRACKETED.fullmatch(token)}
        others = sorted(tokens - self._bracketed, key=len, reverse=True)
        self._others = re.compile("|".join([*map(re.escape, others), _ALWAYS]), re.IGNORECASE)

    def plain(self, text: str) -> str:
        """`text` as characters that mean nothing to a tokenizer, a terminal or a parser.

        Lines end in "\\n" alone. Characters that cannot be seen, or that normalise to the brackets of markup,
        are spelled out (`\\u{200b}`); control tokens and boxed marks are broken by a space.
        Example: "<|im_end|> \\\\boxed{+1}" -> "< |im_end|> \\\\ boxed{+1}".
        """
        whole = text.encode("utf-8", "replace").decode("utf-8")
        lines = [_ODD.sub(lambda found: _seen(found.group()), line) for line in whole.splitlines()]
        shown = "\n".join(lines)
        broken = ""
        while broken != shown:  # a broken mark may leave another one that overlapped it
            broken, shown = shown, self._others.sub(_broken, _BRACKETED.sub(self._broken_if_known, shown))
        return shown

    def quote(self, text: str, limit: int, nonce: str) -> str:
        """At most `limit` characters of `text`, each line behind a bar, between two marks with `nonce`."""
        ends = 2 * limit  # enough of both, whatever escaping makes of them
        missing = max(0, len(text) - 2 * ends)
        seen = text[:ends] + text[ends + missing :]
        lines = clip(self.plain(seen), limit, missing=missing).split("\n")
        return "\n".join([f"BEGIN QUOTE {nonce}", *(BAR + line for line in lines), f"END QUOTE {nonce}"])

    def _broken_if_known(self, found: re.Match[str]) -> str:
        return _broken(found) if found.group().lower() in self._bracketed else found.group()


def nonce_of(secret: str, material: Iterable[str]) -> str:
    """A delimiter that `material` cannot hold, since it would have to hold a digest of itself.

    The same secret and material give the same delimiter, so that a seeded judge is repeatable.
    """
    digest = hashlib.blake2b(key=hashlib.sha256(secret.encode()).digest(), digest_size=8)
    for text in material:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Every string that the tokenizer takes out of a text before it encodes the rest."""
    return frozenset(str(token) for token in cast("Any", tokenizer).get_added_vocab())


def _broken(found: re.Match[str]) -> str:
    return f"{found.group()[0]} {found.group()[1:]}"


@functools.lru_cache(maxsize=4096)
def _seen(character: str) -> str:
    """A character as itself where a reader sees it for what it is, spelled out otherwise."""
    imitates = any(c in _STRUCTURAL for c in unicodedata.normalize("NFKC", character))
    if imitates or unicodedata.category(character)[0] in "CZ":
        return f"\\u{{{ord(character):x}}}"
    return character
