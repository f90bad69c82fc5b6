"""The fenced blocks of the pages, and which of them run.

A block of bash, python or toml runs in `test_pages_run.py`, in the order of its page. A comment before it,
which no reader sees, says why it does not (`<!-- not run: needs a GPU -->`), or names the file that the page
tells its reader to save it in (`<!-- file: my.toml -->`).
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
RUNNABLE = ("bash", "python", "toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: str  # path below the repository's root
    line: int  # of its opening fence
    language: str
    text: str
    not_run: str  # the reason; "" for a block that runs
    file: str  # where the reader saves it; "" for a block that is typed

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a bash block, one a line, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        note = match["note"] or ""
        yield Block(
            page=page.relative_to(ROOT).as_posix(),
            line=text.count("\n", 0, match.start("indent")) + 1,
            language=match["language"],
            text=textwrap.dedent(match["text"]),
            not_run=note.removeprefix("not run: ") if note.startswith("not run: ") else "",
            file=note.removeprefix("file: ") if note.startswith("file: ") else "",
        )


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def hone_commands(block: Block) -> list[list[str]]:
    """Return the words of each call of hone in a block, without variables before it and without `hone`."""
    found: list[list[str]] = []
    for line in block.commands:
        words = [word for word in shlex.split(line.removeprefix("$ "), comments=True) if word]
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            del words[0]
        if words and words[0] in ("hone", ".venv/bin/hone"):
            found.append(words[1:])
    return found


def how_checked(block: Block) -> str:
    """Return how tests check a block: all are parsed or validated in `make test`."""
    if block.not_run:
        return f"checked; not run: {block.not_run}"
    if block.language == "toml":
        return "checked, by `hone.config.resolve`"
    return "checked; run by `make test-full`"


def print_map() -> None:
    """Print how each block is checked: `python -m tests.docs.blocks`."""
    found = [block for block in all_blocks() if block.language in RUNNABLE]
    for block in found:
        print(f"{block.where:<36} {block.language:<7} {how_checked(block)}")
    run = sum(block.language != "toml" and not block.not_run for block in found)
    toml = sum(block.language == "toml" for block in found)
    print(f"{len(found)} blocks: {run} run, {toml} TOML, {len(found) - run - toml} checked only")


if __name__ == "__main__":
    sys.exit(print_map())
