"""The meaning of Python source, independent of its form.

CPython 3.11 and early 3.12 count the depth of syntax trees for all threads together, so parsing in two
threads sometimes fails with a SystemError. Callers parse in the main thread, and `parse` retries.
"""

from __future__ import annotations

import ast
import contextlib
import io
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterable

_ATTEMPTS = 20
_VERSION = re.compile(r"_*version(_info|_tuple)?_*", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_]\w*")


def parse(text: str) -> ast.Module:
    """Return the syntax tree. Raises SyntaxError for every text that Python cannot parse."""
    for _ in range(_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(text)
        except SystemError:
            continue
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error)) from None
    raise SyntaxError(f"Python's parser failed {_ATTEMPTS} times")


def meaning(text: str) -> str:
    """Return a form that is equal for texts that differ only in layout, comments, docstrings or the version.

    Raises SyntaxError.
    """
    module = parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not (_is_text(s) or _is_version(s))] or [ast.Pass()]
    return ast.dump(module)


def words(texts: Iterable[str]) -> set[str]:
    """Return every word that could be a name."""
    return {word for text in texts for word in _WORD.findall(text)}


def defines_tests(text: str) -> bool:
    """Return whether a module has tests that pytest collects. Raises SyntaxError."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        for node in ast.walk(parse(text))
    )


def identifiers(texts: Iterable[str]) -> set[str]:
    """Return the names in the code of Python files, without comments and strings; none of invalid files."""
    found: set[str] = set()
    for text in texts:
        with contextlib.suppress(tokenize.TokenError, SyntaxError):
            tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
            found |= {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in found if not keyword.iskeyword(name)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_version(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return bool(targets) and len(names) == len(targets) and all(map(_VERSION.fullmatch, names))
