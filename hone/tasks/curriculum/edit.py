"""A one-line edit, and the sed command that makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Texts outside these would need escapes in sed's basic regular expressions or in the shell's quotes.
_PLAIN_OLD = re.compile(r"[\w ,()\]+\-<>=!%]+")
_PLAIN_NEW = re.compile(r"[\w ,()+\-<>=!%*:\[\]\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the first `old` on line `line` (from 1) by `new`; an empty `old` adds `new` after that line."""

    line: int
    old: str
    new: str

    def __post_init__(self) -> None:
        if (self.old and not _PLAIN_OLD.fullmatch(self.old)) or not _PLAIN_NEW.fullmatch(self.new):
            raise ValueError(f"{self} needs escapes in sed, choose plainer texts")

    def apply(self, text: str) -> str:
        """`text` after the edit: what `command` makes of a file that holds it."""
        lines = text.splitlines()
        if self.old:
            lines[self.line - 1] = lines[self.line - 1].replace(self.old, self.new, 1)
        else:
            lines.insert(self.line, self.new)
        return "\n".join(lines) + "\n"

    def command(self, path: str) -> str:
        script = f"s/{self.old}/{self.new}/" if self.old else f"a\\{self.new}"
        return f"sed -i '{self.line}{script}' {path}"
