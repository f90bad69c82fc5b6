"""The part of a failing test that reproduces the failure: imports, helpers, statements up to the failure."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from hone.curate.mining.assertions import plain_statements

_HELPER_LINES = 10  # of a function, class or constant of the test file
_ATTEMPTS = 20  # of parsing
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    code: str
    subject: str  # the function of the package that the failing statement calls; "" if none is found
    parameters: str  # of a parametrized test, such as "1-2"; "" otherwise


def find_example(source: str, test: str, line: int, packages: Collection[str]) -> Example | None:
    """Return the code of a test that leads to `line`; None where no function holds that line.

    Args:
        source: text of the test file.
        test: id of the test.
        line: of the failing statement.
        packages: top-level names of the packages under test.
    """
    try:
        tree = parse_module(source)
    except SyntaxError:
        return None
    function = next((node for node in _functions(tree.body) if _holds(node, line)), None)
    if function is None:
        return None
    body = function.body[ast.get_docstring(function, clean=False) is not None :]  # without its docstring
    failing = next((node for node in body if _holds(node, line)), None)
    if failing is None:
        return None
    shown = body[: body.index(failing) + 1]
    helpers = list(helpers_of(tree, names_of(shown)))
    lines = source.splitlines()
    code = _text(lines, shown)
    if _needs_only_assertions(shown):  # of a TestCase, without which nobody can run them
        shown = plain_statements(shown)
        code = "\n".join(map(ast.unparse, shown))
    imports = [ast.unparse(node) for node in imports_of(tree, names_of([*helpers, *shown]))]
    if "pytest" in names_of(shown) and "import pytest" not in imports:
        imports.insert(0, "import pytest")
    definitions = [_text(lines, [node]) for node in helpers]
    parts = ["\n".join(imports), *definitions, code]
    parameters = re.search(r"\[(.*)\]$", test)
    return Example(
        code="\n\n".join(filter(None, parts)),
        subject=_subject(shown, _own_names(tree, packages)),
        parameters=parameters[1] if parameters else "",
    )


def _needs_only_assertions(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements use `self`, and nothing of it but the assertions of unittest."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    attributes = [node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)]
    uses = sum(_is_self(node) for node in nodes)
    return 0 < uses == len(attributes) and all(name.startswith("assert") for name in attributes)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def parse_module(text: str) -> ast.Module:
    """Return the syntax tree. Raises SyntaxError for every text that Python cannot parse.

    CPython 3.11 and early 3.12 count the depth of syntax trees for all threads together, so parsing in two
    threads sometimes fails with a SystemError.
    """
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


def _functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, without nested functions."""
    for node in body:
        if isinstance(node, _FUNCTIONS):
            yield node
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            yield from _functions(node.body)


def helpers_of(tree: ast.Module, names: set[str]) -> Iterator[ast.stmt]:
    """Yield small definitions of the test file that `names` refer to, in their order."""
    wanted, chosen = set(names), list[ast.stmt]()
    for node in reversed(tree.body):  # a helper may use an earlier one
        if _height(node) <= _HELPER_LINES and _defined(node) & wanted:
            chosen.append(node)
            wanted |= names_of([node])
    yield from reversed(chosen)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def imports_of(tree: ast.Module, names: set[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of the file, reduced to `names`; an import of everything is always there."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            used = [alias for alias in node.names if alias.name == "*" or _bound_name(alias) in names]
            if not used:
                continue
            if isinstance(node, ast.Import):
                yield ast.Import(names=used)
            else:
                yield ast.ImportFrom(module=node.module, names=used, level=node.level)


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _own_names(tree: ast.Module, packages: Collection[str]) -> set[str]:
    """Return the names that the file imports from the packages under test."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] in packages):
            own |= {_bound_name(alias) for alias in node.names}
        elif isinstance(node, ast.Import):
            own |= {_bound_name(alias) for alias in node.names if alias.name.split(".")[0] in packages}
    return own


def _subject(statements: list[ast.stmt], own: set[str]) -> str:
    """Return the first function of the package that the last statement calls, else one before it."""
    for statement in reversed(statements):
        for node in ast.walk(statement):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.partition(".")[0] in own and re.fullmatch(r"[\w.]+", name):
                return name
    return ""


def _text(lines: list[str], nodes: list[ast.stmt]) -> str:
    """Return the source lines of statements, dedented; lines that two of them share appear once."""
    numbers = sorted({number for node in nodes for number in range(_first_line(node), _last_line(node) + 1)})
    return textwrap.dedent("\n".join(lines[number - 1] for number in numbers)).rstrip()


def source_text(source: str, node: ast.stmt) -> str:
    """Return the lines of a statement as they are in the file, dedented."""
    return _text(source.splitlines(), [node])


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _height(node: ast.stmt) -> int:
    return _last_line(node) - _first_line(node) + 1


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= _last_line(node)


def names_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that nodes use or bind, without attributes."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
