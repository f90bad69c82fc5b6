"""A parsed Python file and edits of its text. Bytes outside of the edits never change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from hone.tasks.errors import TaskError

BOM = "\ufeff"


class Edit(NamedTuple):
    """Replaces the bytes from `start` to `end` of a file's UTF-8 text by `new`."""

    start: int
    end: int
    new: str


Change = tuple[Edit, ...]  # the edits of one file for one mutation
Bug = tuple[str, Change]  # the name of an operator, and its change: it may do nothing or not compile


class Source:
    """One file and the positions of its nodes, as byte offsets into its UTF-8 text."""

    def __init__(self, path: str, text: str) -> None:
        """Parse a file. Raises TaskError for text that is not Python or has unusual line ends."""
        if text.startswith(BOM) or "\r" in text.replace("\r\n", "") or "\f" in text:
            raise TaskError(f"{path}: a byte order mark or unusual line ends; such files are not mutated")
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
            self._spans = wrapper.resolve(ByteSpanPositionProvider)
        except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
            raise TaskError(f"{path}: cannot be parsed as Python: {str(error).splitlines()[0]}") from None
        self.path, self.text, self.data = path, text, text.encode()
        self.module = wrapper.module
        self.newline = self.module.default_newline

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the start and end offset of a node, its parentheses and decorators included."""
        first, last = node, node
        if isinstance(node, cst.BaseExpression) and node.lpar:
            first, last = node.lpar[0], node.rpar[-1]
        elif isinstance(node, cst.FunctionDef | cst.ClassDef) and node.decorators:
            first = node.decorators[0]
        start, end = self._span(first), self._span(last)
        return start.start, end.start + end.length

    def _span(self, node: cst.CSTNode) -> CodeSpan:
        span = self._spans[node]
        assert isinstance(span, CodeSpan)
        return span

    def code(self, node: cst.CSTNode) -> str:
        """Return the source text of a node with its parentheses."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def line(self, offset: int) -> int:
        """Return the line number of a byte, from 1."""
        return self.data.count(b"\n", 0, offset) + 1

    def indentation(self, node: cst.CSTNode) -> str:
        """Return the white space before the node on its line."""
        start = self.span(node)[0]
        line = self.data[self.data.rfind(b"\n", 0, start) + 1 : start]
        return line[: len(line) - len(line.lstrip())].decode()

    def replace(self, node: cst.CSTNode, new: str) -> Edit:
        return Edit(*self.span(node), new)

    def swap(self, one: cst.CSTNode, other: cst.CSTNode) -> Change:
        """Exchange the texts of two nodes."""
        return self.replace(one, self.code(other)), self.replace(other, self.code(one))

    def remove_statement(self, statement: cst.CSTNode, siblings: Sequence[cst.CSTNode]) -> Edit:
        """Delete the lines of a statement, or replace it by `pass` where the block has no other."""
        others = [s for s in siblings if s is not statement and not is_text(s)]
        if not others:
            return self.replace(statement, "pass")
        return Edit(*self.lines(statement), "")

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the bytes from the start of the node's first line to the end of its last line."""
        start, end = self.span(node)
        after = self.data.find(b"\n", end)
        return self.data.rfind(b"\n", 0, start) + 1, len(self.data) if after < 0 else after + 1


def is_text(statement: cst.CSTNode) -> bool:
    """Return whether a statement is only a string, such as a docstring."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    small = statement.body[0]
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def apply(data: bytes, edits: Iterable[Edit]) -> bytes | None:
    """Return the edited text; None where two edits overlap."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        if edit.start < at:
            return None
        parts += [data[at : edit.start], edit.new.encode()]
        at = edit.end
    return b"".join([*parts, data[at:]])
