"""Text whose author may be hostile: a model, a sandbox or another server."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# Characters that a terminal or a browser obeys or hides: controls except tab and newline, surrogates, and
# format characters such as the bidirectional overrides.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Return the text with every hidden character as a Python escape, such as \x1b."""
    return _HIDDEN.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def as_url(path: object) -> str | None:
    """Return the URL that was given where a path is needed, such as "https://host/x"; None for a path.

    A Path has lost the second slash: Path("https://host/x") is "https:/host/x".
    """
    found = re.fullmatch(r"([a-z][a-z+]*):/+(.+)", str(path))
    return f"{found[1]}://{found[2]}" if found else None


def digest(data: Any) -> str:
    """Return the SHA-256 of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
