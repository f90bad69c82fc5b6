"""A one-line edit and its sed command."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What `apply` supports of sed: plain characters, `.*`, `-*`, `[0-9]`, `[a-z]*`, groups, brackets.
_OLD = re.compile(r"(?:[\w ,()+\-<>=!%\]]|-\*|\.\*|\[0-9\]|\[a-z\]\*|\\[()\[\]])+")
_NEW = re.compile(r"(?:[\w ,()+\-<>=!%*:\[\]\"&]|\\[12])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the first match of `old` on line `line` (from 1) by `new`; an empty `old` adds `new` after it.

    `old` is a basic regular expression as sed's, `new` a replacement that may name its groups (`\\1`) and
    the whole match (`&`). Raises ValueError for texts that would need escapes in sed or in the shell.

    >>> Edit(line=1, old=r"(\\(.*\\), \\(.*\\))", new=r"(\\2, \\1)").apply("print(tax, fee)\\n")
    'print(fee, tax)\\n'
    """

    line: int
    old: str
    new: str

    def __post_init__(self) -> None:
        if self.line < 1:
            raise ValueError(f"{self}: lines are counted from 1")
        if (self.old and not _OLD.fullmatch(self.old)) or not _NEW.fullmatch(self.new):
            raise ValueError(f"{self} needs escapes in sed, choose plainer texts")

    def apply(self, text: str) -> str:
        """Return `text` after the edit; `command` makes the same change in a file."""
        lines = text.splitlines()
        if self.old:
            pattern, new = _python_pattern(self.old), self.new.replace("&", r"\g<0>")
            lines[self.line - 1] = re.sub(pattern, new, lines[self.line - 1], count=1)
        else:
            lines.insert(self.line, self.new)
        return "\n".join(lines) + "\n"

    def replacement(self, text: str) -> str:
        """Return line `line` after the edit; two lines where one was added."""
        after = self.apply(text).splitlines()
        return "\n".join(after[self.line - 1 : self.line + (0 if self.old else 1)])

    def command(self, path: str) -> str:
        script = f"s/{self.old}/{self.new}/" if self.old else f"a\\{self.new}"
        return f"sed -i '{self.line}{script}' {path}"


def _python_pattern(old: str) -> str:
    """Translate a basic regular expression of sed, where `(` is literal and `\\(` opens a group."""
    return re.sub(r"(\\?)([()+])", lambda m: m[2] if m[1] else "\\" + m[2], old)
